# Runs inside a guest of `cargo xtask vm facts`. Prints `## TITLE`, and under it a line a fact: name, tab, value.
# "-" means that the kernel does not have it.

tracing=/sys/kernel/tracing
for module in loop xfs btrfs overlay; do modprobe $module 2>/dev/null; done

fact() { printf '%s\t%s\n' "$1" "${2:--}"; }
present() { if [ -e "$2" ]; then fact "$1" yes; else fact "$1" -; fi; }

echo '## The kernel'
fact 'LSMs' "$(cat /sys/kernel/security/lsm)"
fact 'lockdown' "$(cat /sys/kernel/security/lockdown)"
fact 'unprivileged_bpf_disabled' "$(cat /proc/sys/kernel/unprivileged_bpf_disabled)"
fact 'BTF of modules' "$(ls /sys/kernel/btf | grep -E '^(xfs|btrfs|overlay)$' | tr '\n' ' ')"
fact 'memory in /proc/cgroups' "$(awk '$1 == "memory" { print "yes" }' /proc/cgroups)"
fact 'cgroup v2 controllers' "$(cat /sys/fs/cgroup/cgroup.controllers)"
present 'PSI: /proc/pressure' /proc/pressure/memory
for symbol in vm_zone_stat vm_node_stat vm_event_states; do
    fact "kallsyms: $symbol" "$(awk -v s=$symbol '$3 == s { print $2; exit }' /proc/kallsyms)"
done

echo '## Files in a cgroup of version 2'
group=/sys/fs/cgroup/facts
mkdir $group
for file in memory.peak memory.reclaim memory.high memory.oom.group memory.pressure memory.swap.max \
    memory.events.local memory.zswap.max pids.peak pids.events cgroup.kill cgroup.freeze cgroup.pressure; do
    present $file $group/$file
done
rmdir $group

echo '## Fields of tracepoints'
for event in memcg:mod_memcg_lruvec_state memcg:count_memcg_events oom:mark_victim \
    vmscan:mm_vmscan_direct_reclaim_begin \
    sched:sched_process_fork sched:sched_process_exit sched:sched_process_exec task:task_newtask \
    cgroup:cgroup_mkdir cgroup:cgroup_rmdir cgroup:cgroup_attach_task cgroup:cgroup_release \
    ext4:ext4_allocate_inode ext4:ext4_free_inode ext4:ext4_evict_inode ext4:ext4_request_inode \
    btrfs:btrfs_inode_new btrfs:btrfs_inode_evict \
    xfs:xfs_create xfs:xfs_remove xfs:xfs_iget_miss xfs:xfs_inode_inactivating xfs:xfs_destroy_inode \
    xfs:xfs_iunlink xfs:xfs_iunlink_remove; do
    format=$tracing/events/$(echo $event | tr : /)/format
    # The common_* fields are the same everywhere.
    fact $event "$(awk '/^\tfield:/ && !/common_/ {
        sub(/^\tfield:/, ""); sub(/;.*/, ""); printf "%s%s", n++ ? ", " : "", $0 }' $format 2>/dev/null)"
done

# Which events tell of inodes that come and go? Each step is done with 50 files while the events are counted.
echo '## Events of inodes, 50 files a step'
counted() {
    sync; sleep 1
    awk '!/^#/ { sub(/:$/, "", $5); n[$5]++ } END { for (e in n) print e "=" n[e] }' $tracing/trace | sort | tr '\n' ' '
    echo >$tracing/trace
}
inodes() { stat -f -c '%c total, %d free' /mnt; }
make() { i=0; while [ $i -lt 50 ]; do : >$1/file$i; i=$((i + 1)); done; }
watch() {
    for event in ext4_request_inode ext4_allocate_inode ext4_free_inode ext4_evict_inode ext4_drop_inode \
        xfs_create xfs_remove xfs_iget_miss xfs_inode_inactivating xfs_destroy_inode xfs_iunlink xfs_iunlink_remove \
        btrfs_inode_new btrfs_inode_evict btrfs_inode_request; do
        echo 1 >$tracing/events/$1/$event/enable
    done 2>/dev/null
    echo >$tracing/trace
}
mkdir -p /mnt
for fs in ext4 xfs btrfs; do
    rm -f /tmp/fs.img; truncate -s 400M /tmp/fs.img
    mkfs.$fs -q /tmp/fs.img >/tmp/fs.log 2>&1 && mount -t $fs -o loop /tmp/fs.img /mnt 2>>/tmp/fs.log || {
        fact "$fs" "$(tr '\n' ' ' </tmp/fs.log)"; continue
    }
    fact "$fs: statfs, empty" "$(inodes)"
    watch $fs
    make /mnt
    fact "$fs: made" "$(counted)"
    fact "$fs: statfs, 50 files" "$(inodes)"
    echo 2 >/proc/sys/vm/drop_caches
    fact "$fs: dropped from the cache" "$(counted)"
    stat /mnt/file* >/dev/null
    fact "$fs: looked at again" "$(counted)"
    rm /mnt/file*
    fact "$fs: removed" "$(counted)"
    fact "$fs: statfs, removed" "$(inodes)"
    if [ $fs = ext4 ]; then
        mkdir /mnt/lower /mnt/upper /mnt/work /mnt/merged
        make /mnt/lower
        mount -t overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work overlay /mnt/merged
        mkdir /mnt/merged/new
        counted >/dev/null
        make /mnt/merged/new
        fact "overlay on ext4: made" "$(counted)"
        rm /mnt/merged/new/file*
        fact "overlay on ext4: removed" "$(counted)"
        rm /mnt/merged/file*
        fact "overlay on ext4: removed from the lower layer" "$(counted)"
        umount /mnt/merged
    fi
    echo 0 >$tracing/events/$fs/enable
    umount /mnt
done
rm -f /tmp/fs.img

functions='page_counter_try_charge page_counter_charge page_counter_uncharge page_counter_cancel try_charge_memcg
mem_cgroup_charge __mem_cgroup_charge out_of_memory oom_kill_process mark_oom_victim mem_cgroup_out_of_memory
vfs_create vfs_mkdir vfs_mknod vfs_symlink vfs_link vfs_unlink vfs_rmdir vfs_tmpfile evict iput
new_inode inode_init_always inode_init_always_gfp __ext4_new_inode ext4_evict_inode ext4_free_inode
pids_can_fork pids_release cgroup_post_fork cgroup_release wake_up_new_task copy_process do_exit'
events='mod_memcg_lruvec_state mark_victim sched_process_fork sched_process_exit
task_newtask cgroup_mkdir cgroup_rmdir cgroup_attach_task cgroup_release ext4_allocate_inode ext4_free_inode
ext4_evict_inode'
grep -wE "$(echo $functions | tr ' ' '|')" $tracing/available_filter_functions | awk '{ print $1 }' >/tmp/ftrace

# Prototypes out of a raw dump of BTF: `[7] FUNC 'do_exit' type_id=6 ...`, parameters on lines of their own.
prototypes() {
    awk -v functions="$1" -v events="$2" '
    function type(id) {
        if (id == 0) return "void"
        if (kind[id] == "PTR") return type(ref[id]) " *"
        if (kind[id] == "CONST") return "const " type(ref[id])
        if (kind[id] == "VOLATILE" || kind[id] == "RESTRICT") return type(ref[id])
        if (kind[id] == "STRUCT" || kind[id] == "UNION" || kind[id] == "ENUM") return tolower(kind[id]) " " name[id]
        if (kind[id] == "FUNC_PROTO") return "fn"
        return name[id]
    }
    function shown(p, first,    k, a, j, out) {
        k = split(args[p], a, " ")
        for (j = first; j <= k; j++) out = out (j > first ? ", " : "") type(a[j])
        return "(" out ")"
    }
    BEGIN { while ((getline line < "/tmp/ftrace") > 0) traced[line] = 1 }
    /^\[/ {
        id = substr($1, 2, length($1) - 2); kind[id] = $2
        split($0, quoted, "\047"); name[id] = quoted[2]
        if (match($0, /type_id=[0-9]+/)) ref[id] = substr($0, RSTART + 8, RLENGTH - 8)
        if ($2 == "FUNC") proto[name[id]] = ref[id]
        if ($2 == "TYPEDEF" && name[id] ~ /^btf_trace_/) event[substr(name[id], 11)] = ref[id]
        next
    }
    kind[id] == "FUNC_PROTO" { sub(/.*type_id=/, ""); args[id] = args[id] (args[id] ? " " : "") $0 }
    END {
        n = split(functions, want)
        for (i = 1; i <= n; i++) {
            f = want[i]; out = "-"
            if (f in proto) out = type(ref[proto[f]]) " " shown(proto[f], 1) (f in traced ? "" : ", no ftrace")
            else if (f in traced) out = "ftrace, not in BTF"
            print f "\t" out
        }
        n = split(events, want)
        # The first argument belongs to the tracing machinery.
        for (i = 1; i <= n; i++) print "tp_btf " want[i] "\t" (want[i] in event ? shown(ref[event[want[i]]], 2) : "-")
    }'
}
echo '## Prototypes'
bpftool btf dump file /sys/kernel/btf/vmlinux format raw >/tmp/vmlinux.raw
prototypes "$functions" "$events" </tmp/vmlinux.raw
of_module() {
    if [ -e /sys/kernel/btf/$1 ]; then
        bpftool -B /sys/kernel/btf/vmlinux btf dump file /sys/kernel/btf/$1 format raw | cat /tmp/vmlinux.raw - | prototypes '' "$2"
    else
        for event in $2; do fact "tp_btf $event" -; done
    fi
}
of_module btrfs 'btrfs_inode_new btrfs_inode_evict'
of_module xfs 'xfs_create xfs_remove xfs_iget_miss xfs_inode_inactivating xfs_destroy_inode'

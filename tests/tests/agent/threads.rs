//! The threads of a running agent are those of the table in `docs/architecture.md`, with the scheduling that it gives them.

use evictd_tests::{prelude::*, skip::no_realtime};

/// Priorities of SCHED_FIFO by the name of a thread; 0 is normal. Rows are `name`, or several of them, then the scheduling.
fn table() -> BTreeMap<String, u32> {
    let text = include_str!("../../../docs/architecture.md");
    let (_, table) = text.split_once("| thread | scheduling |").unwrap();
    let rows = table.lines().skip(2).take_while(|l| l.starts_with('|'));
    let mut threads = BTreeMap::new();
    for row in rows {
        let mut cells = row.split('|').skip(1);
        let (names, scheduling) = (cells.next().unwrap(), cells.next().unwrap().trim());
        let fifo = scheduling.strip_prefix("FIFO ").unwrap_or("0");
        let digits: String = fifo.chars().take_while(char::is_ascii_digit).collect();
        // Every second part lies between backticks.
        for name in names.split('`').skip(1).step_by(2) {
            threads.insert(name.to_owned(), digits.parse().unwrap());
        }
    }
    threads
}

/// The threads of a process: names, and priorities of SCHED_FIFO (fields 40 and 41 of `stat`).
fn threads(pid: u32) -> Vec<(String, u32)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let thread = |stat: String| {
        let (name, rest) = stat.rsplit_once(')').unwrap();
        let name = name.split_once('(').unwrap().1.to_owned();
        let field = |n: usize| rest.split_whitespace().nth(n - 3).unwrap().parse::<u32>();
        let policy = field(41).unwrap() & 0xff;
        let is_fifo = policy == u32::try_from(libc::SCHED_FIFO).unwrap();
        (name, if is_fifo { field(40).unwrap() } else { 0 })
    };
    stats.map(thread).collect()
}

#[test]
fn the_threads_are_those_of_the_table() {
    skip_if!(not_root());
    skip_if!(no_realtime());
    let table = table();
    assert_eq!(table.get("manager"), Some(&1));
    let mut files = Files::of_hog_and_calm("threads", 256);
    listen(&mut files.config, "healthAddress");
    listen(&mut files.config, "metricsAddress");
    let agent = files.start(&[]);
    let expected = |name: &str| {
        let name = match name.split_once('/') {
            Some((kind, _)) => format!("{kind}/N"),
            None => name.to_owned(),
        };
        table.get(&name).copied()
    };
    // The priority comes a moment after the thread.
    let differ = || -> Vec<_> {
        let mut threads = threads(agent.pid());
        threads.retain(|(name, priority)| expected(name) != Some(*priority));
        threads
    };
    assert!(until(SOON, || differ().is_empty()), "{:?}", differ());
    // A thread has the name of the program until it has its own.
    for name in ["evictd", "log", "journal", "health", "metrics", "disk-scan"] {
        let runs = || threads(agent.pid()).iter().any(|(n, _)| n == name);
        assert!(until(SOON, runs), "{name}: {:?}", threads(agent.pid()));
    }
    assert!(until(SOON, || differ().is_empty()), "{:?}", differ());
    let running = threads(agent.pid());
    assert!(
        running.iter().filter(|(_, fifo)| *fifo > 0).count() >= 2,
        "{running:?}"
    );
}

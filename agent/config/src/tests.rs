use std::{io::Write as _, time::Duration};

use evictd_engine::{
    Signal,
    model::settings::{Mode, RankingStrategy},
};

use super::{Config, KubeletDocument, KubeletSource, OptionalAmount};

fn load(text: &str) -> Result<Config, String> {
    load_over(text, None)
}

fn load_over(text: &str, kubelet: Option<&str>) -> Result<Config, String> {
    let write = |text: &str| {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(text.as_bytes())
            .expect("room for a few bytes");
        file
    };
    // An empty file would be an error.
    let kubelet = kubelet.map(|text| write(&format!("{text}\n")));
    let own = write(text);
    let kubelet = kubelet.as_ref().map(|file| file.path());
    let loaded = Config::load_with_stand_in(own.path(), kubelet, &KubeletDocument::default());
    loaded.map(|(config, _)| config).map_err(|e| e.to_string())
}

fn thresholds(config: &Config) -> Vec<String> {
    config
        .eviction
        .thresholds
        .iter()
        .map(ToString::to_string)
        .collect()
}

const DEFAULTS: [&str; 6] = [
    "imagefs.available<15%",
    "imagefs.inodesFree<5%",
    "memory.available<100Mi",
    "nodefs.available<10%",
    "nodefs.inodesFree<5%",
    "allocatableMemory.available<100Mi",
];

#[test]
fn an_empty_file_means_the_kubelets_defaults() {
    // R4
    for text in ["", "{}", "# nothing\n", "evictionHard: null"] {
        let config = load(text).expect("a configuration");
        assert_eq!(thresholds(&config), DEFAULTS, "{text:?}");
        assert_eq!(
            config.eviction.pressure_transition_period,
            Duration::from_secs(300)
        );
        assert_eq!(config.eviction.max_pod_grace_period_seconds, 0);
        assert_eq!(config.mode, Mode::Evictd);
    }
}

#[test]
fn one_hard_threshold_drops_the_defaults_unless_they_are_merged() {
    // R4
    let one = "evictionHard: {memory.available: 1Gi}\nenforceNodeAllocatable: []\n";
    assert_eq!(
        thresholds(&load(one).expect("a configuration")),
        ["memory.available<1Gi"]
    );
    let merged = format!("{one}mergeDefaultEvictionSettings: true\n");
    assert_eq!(
        thresholds(&load(&merged).expect("a configuration")),
        [
            "imagefs.available<15%",
            "imagefs.inodesFree<5%",
            "memory.available<1Gi",
            "nodefs.available<10%",
            "nodefs.inodesFree<5%"
        ]
    );
    assert_eq!(
        thresholds(&load("evictionHard: {}").expect("a configuration")),
        [""; 0]
    );
}

#[test]
fn strings_and_lists_of_strings_say_the_same_as_maps() {
    // R19
    let map = "evictionHard: {memory.available: 500Mi, nodefs.available: 10%}\n\
               evictionSoft: {memory.available: 1Gi}\n\
               evictionSoftGracePeriod: {memory.available: 1m30s}\n\
               evictionMinimumReclaim: {nodefs.available: 500Mi}\n";
    let text = "evictionHard: memory.available<500Mi,nodefs.available<10%\n\
                evictionSoft: memory.available<1Gi\n\
                evictionSoftGracePeriod: memory.available=1m30s\n\
                evictionMinimumReclaim: nodefs.available=500Mi\n";
    let list = "evictionHard: ['memory.available<500Mi', 'nodefs.available<10%']\n\
                evictionSoft: ['memory.available<1Gi']\n\
                evictionSoftGracePeriod: ['memory.available=1m30s']\n\
                evictionMinimumReclaim: ['nodefs.available=500Mi']\n";
    let expected = load(map).expect("a configuration");
    assert_eq!(load(text), Ok(expected.clone()));
    assert_eq!(load(list), Ok(expected));
}

#[test]
fn evictds_own_fields_are_read() {
    let config = load(
        "mode: kubelet\nrankingStrategy: qos\nscope: {cgroup: /sys/fs/cgroup/pods}\npodManifest: /etc/pods.yaml\n\
         stateDir: /tmp/state\nshadow: true\nmemoryHook: tracepoint\naccountReclaimableCache: true\n\
         kernelFloor: {enabled: true, memory.available: 50Mi}\nmetricsAddress: 127.0.0.1:9100\n\
         healthAddress: '[::1]:9101'\n",
    )
    .expect("a configuration");
    assert_eq!(config.mode, Mode::Kubelet);
    assert_eq!(config.ranking_strategy, RankingStrategy::Qos);
    assert_eq!(
        config.scope.cgroup.as_deref(),
        Some("/sys/fs/cgroup/pods".as_ref())
    );
    assert_eq!(
        config
            .kernel_floor
            .memory_available
            .map(|value| value.amount(0)),
        Some(50 << 20)
    );
    assert!(config.shadow && config.account_reclaimable_cache);
    let addresses = [config.metrics_address, config.health_address];
    let expected = ["127.0.0.1:9100", "[::1]:9101"].map(|a| a.parse().ok());
    assert_eq!(addresses, expected);
}

#[test]
fn metrics_and_probes_have_a_port_of_their_own() {
    let both = |metrics: &str, health: &str| {
        load(&format!(
            "metricsAddress: '{metrics}:9393'\nhealthAddress: '{health}:9393'\n"
        ))
    };
    for [one, other] in [
        ["127.0.0.1", "127.0.0.1"],
        ["0.0.0.0", "127.0.0.1"],
        ["[::]", "[::1]"],
        ["[::]", "10.0.0.1"],
        ["0.0.0.0", "[::1]"],
    ] {
        for found in [both(one, other), both(other, one)] {
            let error = found.unwrap_err();
            assert!(
                error.ends_with(": overlaps metricsAddress: each has a port of its own"),
                "{error}"
            );
        }
    }
    assert!(both("127.0.0.1", "10.0.0.1").is_ok());
}

/// The kubelet has no such thing: it is on by default only where evictd goes beyond the kubelet.
#[test]
fn the_memory_guard_belongs_to_the_mode() {
    let guard = |text: &str| load(text).map(|config| config.memory_guard);
    let of = |enabled, amount: Option<&str>| OptionalAmount {
        enabled,
        memory_available: amount.map(|text| text.parse().expect("an amount")),
    };
    assert_eq!(guard("mode: evictd"), Ok(of(true, None)));
    assert_eq!(guard("mode: kubelet"), Ok(of(false, None)));
    assert_eq!(
        guard("mode: kubelet\nmemoryGuard: {memory.available: 200Mi}"),
        Ok(of(true, Some("200Mi")))
    );
    assert_eq!(guard("memoryGuard: {enabled: false}"), Ok(of(false, None)));
    let error = guard("memoryGuard: {memory.available: 0}").unwrap_err();
    assert!(
        error.starts_with("memoryGuard.memory.available: 0"),
        "{error}"
    );
}

#[test]
fn a_kubelet_may_leave_limits_on_local_storage_alone() {
    // R10
    let limits = |own, kubelet| load_over(own, kubelet).map(|c| c.eviction.limits_local_storage);
    let off = Some("localStorageCapacityIsolation: false");
    assert_eq!(limits("{}", None), Ok(true));
    assert_eq!(limits("{}", Some("a: 1")), Ok(true));
    assert_eq!(limits("evictionHard: {}", off), Ok(false));
    // It is the kubelet's field.
    let error = limits("localStorageCapacityIsolation: false", None).expect_err("unknown");
    assert!(error.contains("unknown field"), "{error}");
}

#[test]
fn a_kubelets_own_file_is_taken_as_it_is() {
    let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDomain: x\n\
                   evictionHard: {memory.available: 300Mi}\nevictionPressureTransitionPeriod: 0s\n\
                   evictionMaxPodGracePeriod: -1\nenforceNodeAllocatable: [none]\n";
    let config = load_over("shadow: true", Some(kubelet)).expect("a configuration");
    assert_eq!(thresholds(&config), ["memory.available<300Mi"]);
    assert_eq!(config.eviction.max_pod_grace_period_seconds, -1);
    // The kubelet turns zero into its default.
    assert_eq!(
        config.eviction.pressure_transition_period,
        Duration::from_secs(300)
    );
    // What stands in evictd's own file wins.
    let config =
        load_over("evictionHard: {pid.available: 10%}", Some(kubelet)).expect("a configuration");
    assert_eq!(
        config
            .eviction
            .thresholds
            .iter()
            .map(|t| t.signal)
            .collect::<Vec<_>>(),
        [Signal::PidAvailable]
    );
    let of_own = load_over(
        "evictionPressureTransitionPeriod: 0s",
        Some("evictionPressureTransitionPeriod: 10m"),
    );
    let period = of_own.unwrap().eviction.pressure_transition_period;
    assert_eq!(period, Duration::from_secs(300));
    // The kubelet would not start with it.
    let error = load_over("", Some("systemReserved: {memry: 1Gi}")).unwrap_err();
    assert_eq!(error, "systemReserved.memry: unknown field");
    let error = load_over("", Some("kind: Pod")).expect_err("not a kubelet's file");
    assert_eq!(error, r#"kind: "Pod": must be KubeletConfiguration"#);
}

/// Hard thresholds on a machine of this capacity, each with its origin.
fn resolved(own: &str, kubelet: &str, capacity: i64) -> Vec<String> {
    let config = load_over(own, Some(kubelet)).unwrap_or_else(|e| panic!("{own}: {e}"));
    let thresholds = config.eviction.thresholds.iter();
    let texts = thresholds.map(|t| {
        let (quantity, origin) = (t.value.quantity(capacity), config.origins.of(t));
        format!("{}<{quantity} {}", t.signal, origin.as_str())
    });
    texts.collect()
}

#[test]
fn a_step_is_on_top_of_what_the_kubelet_has() {
    let own = "evictionHardAboveKubelet: {memory.available: 100Mi, nodefs.available: 6.25%, pid.available: '100'}\n\
               enforceNodeAllocatable: [pods]\n";
    let kubelet = "evictionHard: {memory.available: 300Mi, nodefs.available: 1Gi, imagefs.available: 2Gi}\n\
                   evictionMinimumReclaim: {memory.available: 10Mi}";
    // A percentage is of the capacity, and is added as an amount. A signal that has no threshold gets none.
    assert_eq!(
        resolved(own, kubelet, 80 << 30),
        [
            "imagefs.available<2Gi kubeletConfiguration",
            "memory.available<400Mi kubeletConfiguration",
            "nodefs.available<6Gi kubeletConfiguration",
            "allocatableMemory.available<300Mi kubeletConfiguration",
        ]
    );
    // The pods' cgroup keeps the kubelet's: the scheduler fills it up to that. So does one that the kubelet's map names for it.
    let found = resolved(
        own,
        "evictionHard: {allocatableMemory.available: 300Mi}",
        80 << 30,
    );
    assert_eq!(
        found,
        ["allocatableMemory.available<300Mi kubeletConfiguration"]
    );
    let of_pods = "evictionHardAboveKubelet: {allocatableMemory.available: 50Mi}";
    let found = resolved(of_pods, "", 80 << 30);
    assert_eq!(found[2], "memory.available<100Mi kubeletDefaults");
    assert_eq!(
        found.last().unwrap(),
        "allocatableMemory.available<150Mi kubeletDefaults"
    );
    // The kubelet's defaults too, and those that are merged into a map of evictd's own.
    let found = resolved(own, "", 80 << 30);
    assert_eq!(found[2], "memory.available<200Mi kubeletDefaults");
    let merged = format!(
        "{own}evictionHard: {{imagefs.available: 1Gi}}\nmergeDefaultEvictionSettings: true"
    );
    let found = resolved(&merged, kubelet, 80 << 30);
    assert_eq!(found[0], "imagefs.available<1Gi configuration");
    assert_eq!(found[2], "memory.available<200Mi kubeletDefaults");
    // What the kubelet merges is its own map.
    let merges = format!("{kubelet}\nmergeDefaultEvictionSettings: true");
    let alone = "enforceNodeAllocatable: []\nevictionHard: {memory.available: 500Mi}";
    assert_eq!(
        resolved(alone, &merges, 80 << 30),
        ["memory.available<500Mi configuration"]
    );
    // A threshold of evictd's own stays as it is, and so does the threshold of the pods' cgroup that follows from it.
    let named = format!("{own}evictionHard: {{memory.available: 1Gi}}");
    assert_eq!(
        resolved(&named, kubelet, 80 << 30),
        [
            "memory.available<1Gi configuration",
            "allocatableMemory.available<1Gi configuration"
        ]
    );
    // A tenth of a small node's memory; the kubelet's own where that is more.
    let step = "evictionHardAboveKubelet: memory.available=100Mi";
    for (kubelet, capacity, expected) in [
        ("", 1_500 << 20, "150Mi"),
        ("", 512 << 20, "100Mi"),
        ("evictionHard: {memory.available: 750Mi}", 4 << 30, "750Mi"),
    ] {
        let config = load_over(step, Some(kubelet)).unwrap();
        let memory = config.eviction.thresholds.iter();
        let amounts = memory.filter(|t| t.signal.as_str() == "memory.available");
        let amounts: Vec<u64> = amounts.map(|t| t.amount(capacity)).collect();
        let expected: evictd_engine::ThresholdValue = expected.parse().unwrap();
        // Shares have single precision.
        let near = |amount: &u64| amount.abs_diff(expected.amount(0)) < 4096;
        assert!(
            amounts.len() == 1 && amounts.iter().all(near),
            "{amounts:?}"
        );
    }
    // A soft threshold that is nearer than the step stays above the hard one, whichever file has it.
    for (soft, expected) in [("200Mi", 150), ("1Gi", 200), ("110Mi", 105), ("50Mi", 200)] {
        let soft = format!(
            "evictionSoft: {{memory.available: {soft}}}\nevictionSoftGracePeriod: {{memory.available: 2m}}"
        );
        for (own, kubelet) in [(format!("{step}\n{soft}"), ""), (step.to_owned(), &*soft)] {
            let config = load_over(&own, Some(kubelet)).unwrap();
            let mut hard = config.eviction.thresholds.iter().filter(|t| t.is_hard());
            let memory = hard
                .find(|t| t.signal.as_str() == "memory.available")
                .unwrap();
            assert_eq!(memory.amount(8 << 30), expected << 20, "{soft}");
        }
    }
    // Soft thresholds stay as they are, and a step of zero is no step.
    let soft =
        "evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}";
    let config = load_over(step, Some(soft)).unwrap();
    assert!(thresholds(&config).contains(&"memory.available<1Gi for 60s".to_owned()));
    for nothing in ["'0'", "0%"] {
        let own = format!("evictionHardAboveKubelet: {{memory.available: {nothing}}}");
        assert_eq!(load_over(&own, Some("")), load_over("", Some("")));
    }
}

#[test]
fn the_fallback_is_for_what_the_kubelet_does_not_say() {
    let own = "evictionHardFallback: {memory.available: 100Mi, nodefs.available: 6.25%}\nenforceNodeAllocatable: []\n";
    let found = |own: &str, kubelet: &str| resolved(own, kubelet, 80 << 30);
    let alone = [
        "memory.available<100Mi evictionHardFallback",
        "nodefs.available<5Gi evictionHardFallback",
    ];
    // The fallback replaces the defaults, but not defaults that the kubelet merges into its own map.
    assert_eq!(found(own, ""), alone);
    let kubelet = "evictionHard: {memory.available: 500Mi}";
    assert_eq!(
        found(own, kubelet),
        ["memory.available<500Mi kubeletConfiguration", alone[1]]
    );
    let merged = found(
        own,
        "evictionHard: {pid.available: '5'}\nmergeDefaultEvictionSettings: true",
    );
    assert!(merged.contains(&"memory.available<100Mi kubeletDefaults".to_owned()));
    // A threshold that the kubelet's map switches off is named there, so the fallback does not hold.
    let off = "evictionHard: {memory.available: 0%}";
    assert_eq!(found(own, off), alone[1..]);
    assert_eq!(found(own, "evictionHard: {}"), alone);
    // evictd's own map is all there is.
    let map = format!("{own}evictionHard: {{pid.available: '1000'}}");
    assert_eq!(found(&map, kubelet), ["pid.available<1k configuration"]);
    // The step is on top of the fallback too.
    let raised = format!("{own}evictionHardAboveKubelet: {{memory.available: 100Mi}}");
    assert_eq!(
        found(&raised, "")[0],
        "memory.available<200Mi evictionHardFallback"
    );
}

#[test]
fn the_fallback_stands_in_for_the_kubelet_where_it_can_hold() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    let source = |own: &str| {
        let text = format!("evictionHardFallback: {{memory.available: 100Mi}}\n{own}");
        std::fs::write(&path, text).unwrap();
        let (missing, nothing) = (dir.path().join("kubelet.yaml"), KubeletDocument::default());
        let read = Config::load_with_stand_in(&path, Some(&missing), &nothing);
        read.unwrap().1.source
    };
    assert_eq!(source(""), KubeletSource::Fallback);
    assert_eq!(source("evictionHard: null"), KubeletSource::Fallback);
    let own = "evictionHard: {memory.available: 200Mi}";
    assert_eq!(
        source(own),
        KubeletSource::Defaults,
        "evictd's own map holds"
    );
}

#[test]
fn errors_name_field_value_and_reason_in_one_line() {
    // R5
    for (text, expected) in [
        ("evictionHrad: {}", "evictionHrad: unknown field"),
        ("scope: {cgruop: /x}", "scope.cgruop: unknown field"),
        (r#""a\nb": 1"#, r"a\nb: unknown field"),
        (
            r#"evictionHard: {"a\e[31m\x9b": 1}"#,
            r"evictionHard.a\u{1b}[31m\u{9b}: 1: must be a string",
        ),
        (
            "scope: {cgroup: x}",
            r#"scope.cgroup: "x": must be an absolute path"#,
        ),
        ("scope: 7", "scope: 7: must be a map of fields"),
        ("- 1", "configuration: [1]: must be a map of fields"),
        (
            "mode: fast",
            r#"mode: "fast": must be one of evictd, kubelet"#,
        ),
        ("shadow: 1", "shadow: 1: must be true or false"),
        (
            "evictionHard: {memory.available: 5}",
            "evictionHard.memory.available: 5: must be a string",
        ),
        (
            "evictionHard: {memory.free: 5Mi}",
            r#"evictionHard.memory.free: "5Mi": unsupported eviction signal"#,
        ),
        (
            "evictionHard: {memory.available: -5%}",
            r#"evictionHard.memory.available: "-5%": must not be below 0%"#,
        ),
        (
            "evictionHard: {memory.available: 101%}",
            r#"evictionHard.memory.available: "101%": must not be above 100%"#,
        ),
        (
            "evictionHard: {memory.available: NaN%}",
            r#"evictionHard.memory.available: "NaN%": is not a percentage"#,
        ),
        (
            "evictionHard: {memory.available: '0'}",
            r#"evictionHard.memory.available: "0": must be positive"#,
        ),
        (
            "evictionHard: memory.available>5Mi",
            r#"evictionHard: "memory.available>5Mi": must have the form <signal><<value>"#,
        ),
        (
            "evictionHard: memory.available<5Mi,memory.available<6Mi",
            r#"evictionHard: "memory.available<6Mi": the signal is given twice"#,
        ),
        (
            "evictionSoft: {memory.available: 1Gi}",
            "evictionSoft.memory.available: \"1Gi\": a soft threshold needs a grace period: \
             evictionSoftGracePeriod has no memory.available",
        ),
        (
            "evictionSoftGracePeriod: {memory.available: -5s}",
            r#"evictionSoftGracePeriod.memory.available: "-5s": must not be negative"#,
        ),
        (
            "evictionMinimumReclaim: {memory.available: 0%}",
            r#"evictionMinimumReclaim.memory.available: "0%": must be above 0%"#,
        ),
        (
            "evictionHardAboveKubelet: {memory.free: 5Mi}",
            r#"evictionHardAboveKubelet.memory.free: "5Mi": unsupported eviction signal"#,
        ),
        (
            "evictionHardAboveKubelet: {memory.available: -5Mi}",
            r#"evictionHardAboveKubelet.memory.available: "-5Mi": must not be negative"#,
        ),
        (
            "evictionHardAboveKubelet: {nodefs.available: 101%}",
            r#"evictionHardAboveKubelet.nodefs.available: "101%": must not be above 100%"#,
        ),
        (
            "evictionHardFallback: {memory.available: '0'}",
            r#"evictionHardFallback.memory.available: "0": must be positive"#,
        ),
        (
            "evictionMaxPodGracePeriod: 3000000000",
            "evictionMaxPodGracePeriod: 3000000000: must be a whole number between -2147483648 and 2147483647",
        ),
        (
            "evictionPressureTransitionPeriod: 5",
            "evictionPressureTransitionPeriod: 5: must be a string",
        ),
        (
            "evictionPressureTransitionPeriod: 5d",
            r#"evictionPressureTransitionPeriod: "5d": the unit is none of ns, us, ms, s, m and h"#,
        ),
        (
            "metricsAddress: here",
            r#"metricsAddress: "here": must be an IP address and a port such as 127.0.0.1:9393"#,
        ),
        (
            "metricsTls: {}",
            "metricsTls: {}: needs metricsAddress: without it no port is open",
        ),
        (
            "metricsAddress: 127.0.0.1:1\nmetricsTls: {authorization: true}",
            "metricsTls.authorization: true: needs cluster: the API server says who may read the metrics",
        ),
        (
            "metricsAddress: 127.0.0.1:1\nmetricsTls: {certificateFile: /tls.crt}",
            r#"metricsTls.certificateFile: "/tls.crt": needs privateKeyFile beside it"#,
        ),
        (
            "systemReserved: {memry: 1Gi}",
            "systemReserved.memry: unknown field",
        ),
        (
            "kubeReserved: {cpu: 1, memory: -1Gi}",
            r#"kubeReserved.memory: "-1Gi": must not be negative"#,
        ),
        (
            "healthAddress: 9394",
            "healthAddress: 9394: must be a string",
        ),
        (
            "enforceNodeAllocatable: [none, pods]",
            r#"enforceNodeAllocatable: "none": excludes all other entries"#,
        ),
    ] {
        assert_eq!(load(text), Err(expected.to_owned()), "{text}");
    }
    for broken in ["evictionHard: {", "a: 1\na: 2", "\u{0}", "&a [*a]"] {
        let error = load(broken).expect_err(broken);
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    // No advice for programmers.
    for (broken, expected) in [
        (
            "a: 1\na: 2",
            "duplicate mapping key: a not allowed here at line 2, column 1",
        ),
        (
            "a: 1\n---\nb: 1",
            "only single YAML document expected but multiple found",
        ),
        (
            "evictionHard: {memory.available: 1e999999999}",
            "value `1e999999999` is not a finite number at line 1, column 34",
        ),
    ] {
        let error = load(broken).expect_err(broken);
        assert!(error.contains(expected), "{error}");
    }
}

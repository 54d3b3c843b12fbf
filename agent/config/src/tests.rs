use std::{io::Write as _, time::Duration};

use evictd_engine::{
    Signal,
    model::settings::{Mode, RankingStrategy},
};

use super::{Config, Reserve};

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
    let (own, kubelet) = (write(text), kubelet.map(write));
    Config::load_over(own.path(), kubelet.as_ref().map(|file| file.path()))
        .map_err(|e| e.to_string())
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

/// The kubelet has no such thing: it is on by default only where evictd goes beyond the kubelet.
#[test]
fn the_memory_guard_belongs_to_the_mode() {
    let guard = |text: &str| load(text).map(|config| config.memory_guard);
    let of = |enabled, amount: Option<&str>| Reserve {
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
fn a_kubelets_own_file_is_taken_as_it_is() {
    let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nclusterDomain: x\n\
                   evictionHard: {memory.available: 300Mi}\nevictionPressureTransitionPeriod: 0s\n\
                   evictionMaxPodGracePeriod: 60\nenforceNodeAllocatable: [none]\n";
    let config = load_over("shadow: true", Some(kubelet)).expect("a configuration");
    assert_eq!(thresholds(&config), ["memory.available<300Mi"]);
    assert_eq!(config.eviction.max_pod_grace_period_seconds, 60);
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
    let error = load_over("", Some("kind: Pod")).expect_err("not a kubelet's file");
    assert_eq!(error, r#"kind: "Pod": must be KubeletConfiguration"#);
}

#[test]
fn errors_name_field_value_and_reason_in_one_line() {
    // R5
    for (text, expected) in [
        ("evictionHrad: {}", "evictionHrad: unknown field"),
        ("scope: {cgruop: /x}", "scope.cgruop: unknown field"),
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
}

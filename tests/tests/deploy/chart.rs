//! The chart, through Helm's own engine: it is clean, the plain manifests say the same, and what it says fits the agent.

use evictd_kube::{
    access::{ENDPOINT_RIGHTS, FLEET_ENTRY_RIGHTS, FLEET_RIGHTS, PAUSE_RIGHTS, RIGHTS, Right},
    scraper_access::SCRAPER_RIGHTS,
};
use evictd_tests::{
    agent::binary,
    deploy::{
        self, Chart, chart,
        helm::{self, helm},
        manifests, objects, plain, plain_values,
    },
    prelude::*,
};

fn render(values: &Value) -> BTreeMap<String, String> {
    let rendered = helm()
        .unwrap()
        .render(&chart(), values, deploy::RELEASE, deploy::RELEASE);
    rendered.unwrap()
}

fn rendered(values: &Value) -> Chart {
    Chart::of(values).unwrap()
}

/// Everything that can be switched on at once.
fn everything() -> Value {
    json!({
        "namespace": {"create": true},
        "metrics": {"podMonitor": {"enabled": true}},
        "hostMounts": {"bpffs": true},
        "kubelet": {"configFile": "/etc/kubernetes/kubelet.yaml"},
        "image": {"digest": format!("sha256:{}", "0".repeat(64)), "pullSecrets": [{"name": "s"}]},
        "config": {"cluster": {"configz": true}, "evictionHard": {"memory.available": "5%"}},
        "podLabels": {"a": "b"},
        "extraEnv": [{"name": "EVICTD_LOG", "value": "debug"}],
    })
}

#[test]
fn the_chart_is_clean() {
    skip_if!(helm().err());
    for values in [json!({}), everything()] {
        let findings = helm().unwrap().lint(&chart(), &values).unwrap();
        let bad: Vec<_> = findings.iter().filter(|f| f.severity > 1).collect();
        assert!(bad.is_empty(), "{bad:?}");
    }
}

#[test]
fn the_plain_manifests_are_what_the_chart_renders_to() {
    skip_if!(helm().err());
    let expected = plain(&render(&plain_values())).unwrap();
    let dir = deploy::dir().join("manifests");
    if std::env::var_os("EVICTD_BLESS").is_some() {
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        for (name, text) in &expected {
            fs::write(dir.join(name), text).unwrap();
        }
    }
    assert!(
        manifests().unwrap() == expected,
        "deploy/manifests differs from the chart; EVICTD_BLESS=1 cargo test -p evictd-tests --test deploy \
         writes it anew"
    );
}

#[test]
fn the_step_above_the_kubelet_can_be_switched_off() {
    skip_if!(helm().err());
    rendered(&json!({})).has("config/evictionHardAboveKubelet | {memory.available: 100Mi}");
    let off = json!({"config": {"evictionHardAboveKubelet": null}});
    rendered(&off).has("config/evictionHardAboveKubelet | -");
}

/// Agents test the policies where there are some that refuse.
#[test]
fn agents_expect_the_policies_that_are_there() {
    skip_if!(helm().err());
    for [values, expected] in rows(
        "{} | -
        {enabled: false} | false
        {validationActions: [Warn]} | false
        {validationActions: [Deny, Audit]} | -",
    ) {
        let objects = rendered(&json!({"admissionPolicy": yaml(values)}));
        objects.has(&format!("config/cluster/admissionPolicies | {expected}"));
        thresholds(&objects).unwrap();
    }
}

/// The prefixes that the chart lets through are those that agents take.
#[test]
fn a_taint_may_have_a_prefix_of_its_own() {
    skip_if!(helm().err());
    for prefix in [
        "a.example/",
        "a-b.example/Evictd-1._",
        "xkubernetes.io/",
        "status-taint.cluster-autoscaler.kubernetes.io/evictd-",
    ] {
        let cluster = json!({"taint": {"keyPrefix": prefix}, "formerTaintKeyPrefixes": [prefix]});
        thresholds(&rendered(&json!({"config": {"cluster": cluster}}))).expect(prefix);
    }
}

/// Helm installs it before the rest, and never removes it: policies outlive the release.
#[test]
fn the_chart_brings_the_definition_of_policies() {
    let [original, copy] = [deploy::dir().join("crds"), chart().join("crds")]
        .map(|dir| dir.join("evictionpolicies.yaml"));
    if std::env::var_os("EVICTD_BLESS").is_some() {
        fs::copy(&original, &copy).unwrap();
    }
    let [original, copy] = [original, copy].map(|path| fs::read_to_string(path).unwrap());
    assert_eq!(
        original, copy,
        "deploy/crds and deploy/chart/evictd/crds differ"
    );
}

/// What `kubectl kustomize` builds of a directory.
fn kustomized(dir: &Path) -> String {
    let mut kubectl = Command::new("kubectl");
    deploy::run(kubectl.arg("kustomize").arg(dir)).unwrap()
}

fn of(text: &str) -> Chart {
    Chart(objects(text).unwrap())
}

/// Why nothing can be built here.
fn no_kubectl() -> Option<&'static str> {
    let version = Command::new("kubectl")
        .args(["version", "--client"])
        .output();
    version.is_err().then_some("kubectl is not installed")
}

/// The ConfigMap's name, which must be the one that the DaemonSet mounts.
fn mounted(chart: &Chart) -> String {
    let name = &chart["ConfigMap"]["metadata"]["name"];
    assert_eq!(chart.pod()["volumes"][0]["configMap"]["name"], *name);
    name.as_str().unwrap().to_owned()
}

#[test]
fn kustomize_gives_the_same_objects() {
    skip_if!(no_kubectl());
    let text = kustomized(&deploy::dir().join("manifests"));
    let sorted = |chart: Chart| {
        let mut texts: Vec<String> = chart.0.iter().map(Value::to_string).collect();
        texts.sort();
        texts
    };
    // Kustomize's hash instead of the chart's.
    let name = mounted(&of(&text));
    assert!(
        name.len() > "evictd-".len() && name.starts_with("evictd-"),
        "{name}"
    );
    let built = of(&text.replace(&name, "evictd"));
    assert_eq!(sorted(built), sorted(Chart::plain().unwrap()));
}

/// A directory with an overlay of the plain manifests, which lie in `base`.
fn overlay(kustomization: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    fs::create_dir(&base).unwrap();
    for (name, text) in manifests().unwrap() {
        fs::write(base.join(name), text).unwrap();
    }
    let text = format!("resources: [base]\n{kustomization}");
    fs::write(dir.path().join("kustomization.yaml"), text).unwrap();
    dir
}

/// An overlay with another configuration is rolled out too.
#[test]
fn an_overlay_with_another_configuration_is_another_pod() {
    skip_if!(no_kubectl());
    let dir = overlay(
        "configMapGenerator:\n\
         - {name: evictd, namespace: evictd, behavior: replace, files: [config.yaml]}\n",
    );
    let base = dir.path().join("base");
    fs::write(dir.path().join("config.yaml"), "shadow: true\n").unwrap();
    let overlaid = of(&kustomized(dir.path()));
    assert_ne!(mounted(&overlaid), mounted(&of(&kustomized(&base))));
    let data = &overlaid["ConfigMap"]["data"]["config.yaml"];
    assert_eq!(data, "shadow: true\n");
}

/// The accounts that the policies of an overlay with another namespace are for.
fn held_accounts(patches: &str) -> Vec<String> {
    let dir = overlay(&format!("namespace: other\n{patches}"));
    let built = of(&kustomized(dir.path()));
    let policies = built.kind("ValidatingAdmissionPolicy");
    let account = |policy: &Value| {
        let text = policy["spec"]["matchConditions"][0]["expression"].as_str();
        text.unwrap().split('\'').nth(1).unwrap().to_owned()
    };
    policies.map(account).collect()
}

/// Expressions keep the namespace of the base: docs/deploy.md has the patch that moves them with the agents.
#[test]
fn an_overlay_with_another_namespace_has_to_patch_the_policies() {
    skip_if!(no_kubectl());
    let own = "system:serviceaccount:evictd:evictd";
    assert_eq!(held_accounts(""), [own; 6]);
    let page = fs::read_to_string(deploy::dir().join("../docs/deploy.md")).unwrap();
    let (_, patch) = page.split_once("```yaml\npatches:\n").unwrap();
    let patch = format!("patches:\n{}", patch.split("```").next().unwrap());
    let other = "system:serviceaccount:other:evictd";
    assert_eq!(held_accounts(&patch), [other; 6]);
}

/// `apiGroup/resource verb` of every rule.
fn granted(role: &Value) -> Vec<String> {
    let list = |rule: &Value, field: &str| -> Vec<String> {
        let items = rule[field].as_array().unwrap().iter();
        items.map(|v| v.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        let names = rule.get("resourceNames");
        // One object of another namespace: a Role there could be moved by kustomize.
        let is_apiserver = names.is_some_and(|names| *names == json!(["kubernetes"]));
        let is_named = role["kind"] == "Role" || is_apiserver;
        assert_eq!(names.is_some(), is_named, "{rule}");
        assert_eq!(
            rule.as_object().unwrap().len(),
            3 + usize::from(names.is_some()),
            "{rule}"
        );
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                let verbs = list(rule, "verbs").into_iter();
                granted.extend(verbs.map(|verb| format!("{group}/{resource} {verb}")));
            }
        }
    }
    granted.sort();
    granted
}

#[test]
fn the_role_grants_what_the_agent_asks_for_and_nothing_else() {
    let wanted = |rights: &[Right]| -> Vec<String> {
        let text = |r: &Right| format!("{}/{} {}", r.group, r.resource, r.verb);
        let mut wanted: Vec<_> = rights.iter().map(text).collect();
        wanted.sort();
        wanted
    };
    let mut expected = wanted(&[&RIGHTS[..], &ENDPOINT_RIGHTS].concat());
    let plain = Chart::plain().unwrap();
    let agent = &plain["ClusterRole"];
    assert_eq!(granted(agent), expected);
    let rules = agent["rules"].as_array().unwrap();
    let of_slices = |rule: &&Value| rule["resources"] == json!(["endpointslices"]);
    let slices = rules.iter().find(of_slices).unwrap();
    assert_eq!(slices["resourceNames"], json!(["kubernetes"]));
    let roles = |kind| plain.kind(kind).count();
    assert_eq!((roles("ClusterRole"), roles("Role")), (1, 2));
    let role = |name: &str| {
        let is_it = |o: &&Value| o["metadata"]["name"] == name;
        plain.kind("Role").find(is_it).expect(name)
    };
    let fleet = role("evictd-fleet");
    let of_brake = [
        ("evictd-fleet", &FLEET_RIGHTS[..]),
        ("evictd-fleet-evictions", &FLEET_ENTRY_RIGHTS),
    ];
    let rules = fleet["rules"].as_array().unwrap();
    assert_eq!(rules.len(), of_brake.len());
    for (rule, (name, rights)) in rules.iter().zip(of_brake) {
        assert_eq!(rule["resourceNames"], json!([name]));
        let alone = json!({"kind": "Role", "rules": [rule]});
        assert_eq!(granted(&alone), wanted(rights));
    }
    // One ConfigMap, and the one that the agent is told to look at.
    let role = role("evictd-pause");
    assert_eq!(granted(role), wanted(&PAUSE_RIGHTS));
    assert_eq!(role["rules"][0]["resourceNames"], json!(["evictd-pause"]));
    let config = plain.config_text();
    let maps = [
        "pauseConfigMap: evictd/evictd-pause",
        "configMap: evictd/evictd-fleet",
    ];
    has(config, &maps);

    skip_if!(helm().err());
    // With configz one more, as the agent's documentation says.
    let all = rendered(&everything());
    expected.push("/nodes/proxy get".to_owned());
    expected.sort();
    assert_eq!(granted(&all["ClusterRole"]), expected);
    let none = rendered(&json!({"pause": {"configMap": ""}, "fleetBrake": {"enabled": false}}));
    none.has("Role | -\nRoleBinding | -");
}

/// A certificate from a Secret, the right to review tokens, and a role for those who scrape.
#[test]
fn metrics_over_tls() {
    skip_if!(helm().err());
    let rendered = |tls: Value| {
        let ca = json!({"ca": {"secret": {"name": "evictd-tls", "key": "ca.crt"}}, "serverName": "evictd"});
        let ca = if tls["authorization"] == false {
            json!({})
        } else {
            ca
        };
        let monitor = json!({"enabled": true, "tokenSecret": {"name": "scraper"}, "tlsConfig": ca});
        rendered(&json!({"metrics": {"tls": tls, "podMonitor": monitor}}))
    };
    let objects = rendered(json!({"enabled": true, "secretName": "evictd-tls"}));
    thresholds(&objects).unwrap();
    has(objects.config_text(), &["metricsTls:"]);
    let volumes = objects.pod()["volumes"].as_array().unwrap();
    let secret = json!({"name": "metrics-tls", "secret": {"secretName": "evictd-tls"}});
    assert!(volumes.contains(&secret));
    objects.has(
        "PodMonitor/spec/podMetricsEndpoints/1/scheme | https
        PodMonitor/spec/podMetricsEndpoints/1/tlsConfig/serverName | evictd
        PodMonitor/spec/podMetricsEndpoints/1/tlsConfig/insecureSkipVerify | -
        PodMonitor/spec/podMetricsEndpoints/1/authorization/credentials | {name: scraper, key: token}
        PodMonitor/spec/podMetricsEndpoints/2 | -",
    );
    let endpoint = &objects["PodMonitor"]["spec"]["podMetricsEndpoints"][1];
    let relabelings = endpoint["relabelings"].as_array().unwrap();
    let instance = relabelings.iter().find(|r| r["targetLabel"] == "instance");
    let node = json!(["__meta_kubernetes_pod_node_name"]);
    assert_eq!(instance.unwrap()["sourceLabels"], node);
    let roles = |objects: &Chart| -> Vec<Value> {
        let roles = objects.kind("ClusterRole");
        roles.map(|role| role["rules"].clone()).collect()
    };
    let reader = json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]);
    let [agent, scraper] = roles(&objects).try_into().unwrap();
    assert_eq!(scraper, reader);
    for right in SCRAPER_RIGHTS {
        let rule = json!({"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]});
        assert!(agent.as_array().unwrap().contains(&rule), "{rule}");
    }
    let open = rendered(json!({"enabled": true, "authorization": false}));
    thresholds(&open).unwrap();
    assert_eq!(roles(&open).len(), 1);
    let mounts = open.container()["volumeMounts"].as_array();
    assert!(mounts.unwrap().iter().all(|m| m["name"] != "metrics-tls"));
}

/// A rollout takes hours, in which agents with and without TLS are there: each is scraped as it serves, and reached.
#[test]
fn tls_comes_to_the_metrics_with_each_agent() {
    skip_if!(helm().err());
    let ports = |tls: bool, config: Value| {
        let monitor =
            json!({"enabled": true, "tokenSecret": {"name": "scraper"}, "tlsConfig": config});
        let values = json!({"metrics": {"tls": {"enabled": tls}, "podMonitor": monitor}});
        let objects = rendered(&values);
        let served = objects.container()["ports"][0]["name"].clone();
        let endpoints = &objects["PodMonitor"]["spec"]["podMetricsEndpoints"];
        let scraped: Vec<(Value, bool, bool)> = endpoints
            .as_array()
            .unwrap()
            .iter()
            .map(|e| {
                let is_https = e["scheme"] == "https";
                assert_eq!(e["relabelings"].as_array().unwrap().len(), 2);
                (e["port"].clone(), is_https, e["authorization"].is_object())
            })
            .collect();
        let policy = &objects["NetworkPolicy"];
        let open = policy["spec"]["ingress"][0]["ports"].as_array().unwrap();
        let open: Vec<&Value> = open.iter().map(|p| &p["port"]).collect();
        assert_eq!(open, ["metrics", "metrics-tls"]);
        (served, scraped)
    };
    let ca = || json!({"serverName": "evictd"});
    let plain = (json!("metrics"), false, false);
    let both = vec![plain.clone(), (json!("metrics-tls"), true, true)];
    assert_eq!(ports(true, ca()), (json!("metrics-tls"), both.clone()));
    // What knows the certificates stays until the last agent has left TLS.
    assert_eq!(ports(false, ca()), (json!("metrics"), both));
    assert_eq!(ports(false, json!({})), (json!("metrics"), vec![plain]));
}

/// Rights are there or gone at once; a configuration comes and goes node after node.
#[test]
fn rights_can_outlast_the_configuration_that_needs_them() {
    skip_if!(helm().err());
    let rights = |values: Value| {
        let objects = rendered(&values);
        let granted = granted(&objects["ClusterRole"]);
        let has = |right: &str| granted.iter().any(|g| g == right);
        let reviews = [
            "authentication.k8s.io/tokenreviews create",
            "authorization.k8s.io/subjectaccessreviews create",
        ];
        (has("/nodes/proxy get"), reviews.iter().all(|r| has(r)))
    };
    let on = || json!({"cluster": {"configz": true}});
    let tls = || json!({"tls": {"enabled": true}});
    assert_eq!(rights(json!({})), (false, false));
    assert_eq!(
        rights(json!({"config": on(), "metrics": tls()})),
        (true, true)
    );
    let both = |granted: bool| json!({"configz": granted, "tokenReviews": granted});
    assert_eq!(rights(json!({"rbac": both(true)})), (true, true));
    let without = json!({"rbac": both(false), "config": on(), "metrics": tls()});
    assert_eq!(rights(without), (false, false));

    let objects = rendered(&json!({"pause": {"configMap": "b", "formerConfigMap": "a"}}));
    let is_it = |o: &&Value| o["metadata"]["name"] == "evictd-pause";
    let role = objects.kind("Role").find(is_it).unwrap();
    assert_eq!(role["rules"][0]["resourceNames"], json!(["b", "a"]));

    let may_write = |enabled: bool| {
        let objects = rendered(&json!({"tenantPolicies": {"enabled": enabled}}));
        let roles: Vec<&Value> = objects.kind("ClusterRole").collect();
        let is_taken_up = |role: &&Value| {
            role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
        };
        let role = roles.into_iter().find(is_taken_up);
        role.map(|role| role["rules"][0]["resources"].clone())
    };
    assert_eq!(may_write(false), None);
    assert_eq!(may_write(true), Some(json!(["podevictionpolicies"])));
}

/// The shipped policy with tokens is of use with the chart: each file that it names is an entry of the Secret.
#[test]
fn gates_have_their_tokens() {
    skip_if!(helm().err());
    let values = json!({
        "gateSecrets": {"secretName": "gates"},
        "config": {"policies": ["/etc/evictd-policies"]},
        "extraVolumes": [{"name": "policies", "configMap": {"name": "policies"}}],
        "extraVolumeMounts": [{"name": "policies", "mountPath": "/etc/evictd-policies", "readOnly": true}],
    });
    let objects = rendered(&values);
    let mounts = &objects.container()["volumeMounts"];
    let gates = json!({"name": "gate-secrets", "mountPath": "/etc/evictd-gates", "readOnly": true});
    let volumes = &objects.pod()["volumes"];
    let secret = json!({"name": "gate-secrets", "secret": {"secretName": "gates"}});
    for (list, expected) in [
        (mounts, &gates),
        (mounts, &values["extraVolumeMounts"][0]),
        (volumes, &secret),
        (volumes, &values["extraVolumes"][0]),
    ] {
        assert!(
            list.as_array().unwrap().contains(expected),
            "{expected}: {list}"
        );
    }
    has(objects.config_text(), &["gateSecrets: /etc/evictd-gates"]);
}

/// The thresholds that the agent reads from a rendered ConfigMap.
fn thresholds(chart: &Chart) -> Result<Value, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    // Where the node has its kubelet's configuration, this machine may have none.
    let kubelet = dir.path().join("kubelet.yaml");
    let own = "kind: KubeletConfiguration\nevictionHard: {memory.available: 321Mi}\n";
    fs::write(&kubelet, own).unwrap();
    fs::write(&file, chart.config_text()).unwrap();
    let mut command = Command::new(binary().unwrap());
    command
        .args(["thresholds", "-o", "json", "--config"])
        .arg(&file);
    command
        .arg("--kubelet-config")
        .arg(&kubelet)
        .env("NODE_NAME", "n1");
    let out = command.output().unwrap();
    match out.status.success() {
        true => Ok(serde_json::from_slice(&out.stdout).unwrap()),
        false => Err(String::from_utf8(out.stderr).unwrap()),
    }
}

#[test]
fn the_agent_reads_its_configuration() {
    let plain = Chart::plain().unwrap();
    let memory = |thresholds: &Value| {
        let all = thresholds.as_array().unwrap().iter();
        let found: Vec<Value> = all
            .filter(|t| t["signal"] == "memory.available")
            .cloned()
            .collect();
        found[0]["value"].clone()
    };
    // Nothing of its own: the kubelet's, with the step on top.
    let own = memory(&thresholds(&plain).unwrap());
    assert_eq!(own["raised"]["value"], json!({"quantity": 321 << 20}));
    assert_eq!(own["raised"]["by"], json!({"quantity": 100 << 20}));

    skip_if!(helm().err());
    let own = thresholds(&rendered(&everything())).unwrap();
    assert_eq!(memory(&own)["percentage"].as_f64().unwrap(), 0.05);
    let ipv6 = rendered(&json!({"metrics": {"address": "::"}, "kubelet": {"configFile": ""}}));
    thresholds(&ipv6).unwrap();
    let wrong = rendered(&json!({"config": {"evictionHrd": {}}}));
    has(
        &thresholds(&wrong).unwrap_err(),
        &["evictionHrd: unknown field"],
    );
}

/// Apart from the metrics, which any pod may ask; in the node's network only the node itself asks.
#[test]
fn probes_have_a_port_of_their_own() {
    skip_if!(helm().err());
    for [values, table] in [
        [
            "{hostNetwork: true}",
            "config/healthAddress | 127.0.0.1:9394
            container/readinessProbe/httpGet | {path: /readyz, port: health, host: 127.0.0.1}",
        ],
        [
            "{metrics: {enabled: false}, health: {port: 1}}",
            "config/metricsAddress | -
            config/healthAddress | 0.0.0.0:1
            container/livenessProbe/httpGet/path | /healthz",
        ],
        [
            "{health: {enabled: false}}",
            "config/healthAddress | -
            container/livenessProbe | -",
        ],
        ["{metrics: {probes: false}}", "container/readinessProbe | -"],
    ] {
        rendered(&yaml(values)).has(table);
    }
}

/// What stands between the rest of the cluster and the agents' ports.
#[test]
fn metrics_are_for_those_who_scrape_them() {
    skip_if!(helm().err());
    // An empty list of peers in a rule would be every pod.
    for [values, pointer, expected] in rows(
        "{} | /spec/ingress/0/ports | [{port: metrics, protocol: TCP}, {port: metrics-tls, protocol: TCP}]
        {} | /spec/ingress/0/from/0/namespaceSelector/matchLabels/kubernetes.io~1metadata.name | monitoring
        {} | /spec/ingress/1 | -
        {networkPolicy: {scrapers: []}} | /spec/ingress | []
        {metrics: {enabled: false}} | /spec/ingress | []
        {networkPolicy: {scrapers: [{ipBlock: {cidr: 10.0.0.0/8}}]}} | /spec/ingress/0/from | [{ipBlock: {cidr: 10.0.0.0/8}}]
        {networkPolicy: {enabled: false}} |  | -
        {hostNetwork: true} |  | -",
    ) {
        let objects = rendered(&yaml(values));
        objects.has(&format!("NetworkPolicy{pointer} | {expected}"));
        let labels = &objects["DaemonSet"]["spec"]["template"]["metadata"]["labels"];
        for policy in objects.kind("NetworkPolicy") {
            assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
            let selected = &policy["spec"]["podSelector"]["matchLabels"];
            for (key, value) in selected.as_object().unwrap() {
                assert_eq!(labels[key], *value);
            }
        }
    }
}

/// A configuration is seen by an agent when the rollout reaches its node, and not before.
#[test]
fn another_configuration_is_rolled_out() {
    skip_if!(helm().err());
    let parts = |values: &Value| {
        let objects = rendered(values);
        let map = &objects["ConfigMap"];
        assert_eq!(map["immutable"], true);
        mounted(&objects);
        (
            objects["DaemonSet"]["spec"]["template"].clone(),
            map.clone(),
        )
    };
    let (template, map) = parts(&json!({}));
    let (other_template, other_map) = parts(&json!({"config": {"shadow": true}}));
    assert_ne!(map["metadata"]["name"], other_map["metadata"]["name"]);
    assert_ne!(template, other_template);
    // Nothing but the name: the rest of the pod is as it was.
    let name = |template: &Value| template["spec"]["volumes"][0]["configMap"]["name"].clone();
    let text = other_template.to_string();
    let [own, other] = [&template, &other_template].map(|template| name(template).to_string());
    assert_eq!(text.replace(&other, &own), template.to_string());
    // What is no configuration leaves its ConfigMap alone.
    let (other_template, same_map) = parts(&json!({"podLabels": {"team": "nodes"}}));
    assert_ne!(template, other_template);
    assert_eq!(map, same_map);
}

/// Each of these values is refused in such words.
fn refuses(table: &str) {
    for [values, expected] in rows(table) {
        let values = yaml(values);
        let result = helm::objects(&values);
        has(
            &result.expect_err(&values.to_string()).to_string(),
            &[expected],
        );
    }
}

#[test]
fn wrong_values_are_refused_by_name() {
    skip_if!(helm().err());
    refuses(
        r#"
        {tolerationz: []} | tolerationz
        {stateDir: var/lib/evictd} | stateDir
        {security: {extraCapabilities: [CAP_SYS_ADMIN]}} | extraCapabilities
        {resources: {limits: {memory: null}}} | memory
        {updateStrategy: {maxUnavailable: 0}} | maxUnavailable
        {config: {stateDir: /x}} | stateDir
        {metrics: {port: 0}} | port
        {health: {address: 127.0.0.1}} | health.address
        {metrics: {enabled: false, podMonitor: {enabled: true}}} | metrics.enabled
        {metrics: {enabled: false, tls: {enabled: true}}} | metrics.tls.enabled needs metrics.enabled
        {metrics: {tls: {enabled: true}, podMonitor: {enabled: true}}} | metrics.podMonitor.tokenSecret.name is needed
        {metrics: {tls: {enabled: true}, podMonitor: {enabled: true, tokenSecret: {name: scraper}}}} | metrics.podMonitor.tlsConfig is needed with metrics.tls.authorization
        {metrics: {address: localhost}} | address
        {metrics: {address: "[::]"}} | address
        {health: {address: node}} | address
        {health: {port: 9393}} | health.port: 9393 is metrics.port too
        {config: {evictionRates: {node: {evictions: 99, period: 5m}}}} | evictions
        {config: {evictionRates: {owner: {evictions: 1, period: 5m, exemptGrowers: true}}}} | exemptGrowers
        {gateSecrets: {secretName: a/b}} | secretName
        {serviceAccount: {create: false}} | name
        {metrics: {enabled: false, prometheusRule: {enabled: true}}} | metrics.prometheusRule.enabled needs metrics.enabled
        {networkPolicy: {scrapers: [{pods: {}}]}} | pods
        "#,
    );
    // The API server takes one of them.
    refuses("{admissionPolicy: {validationActions: [Deny, Warn]}} | validationActions");
    // Rights and mounts follow the chart's own values.
    refuses(
        r#"
        {config: {cluster: {pauseConfigMap: ops/pause}}} | pauseConfigMap
        {config: {cluster: {tenantPolicies: {maxGrace: 5m}}}} | tenantPolicies
        {config: {cluster: {fleetBrake: {configMap: ops/brake}}}} | configMap
        {config: {metricsTls: {authorization: false}}} | metricsTls
        {config: {cluster: {admissionPolicies: false}}} | admissionPolicies
        {config: {filesystems: {nodefs: /x}}} | nodefs
        {config: {filesystems: {imagefs: /x}}} | imagefs
        {config: {cri: {socket: /run/x.sock}}} | socket
        {config: {cluster: {kubeletConfig: /x}}} | kubeletConfig
        {config: {cluster: {kubeletConfigDir: /x}}} | kubeletConfigDir
        {config: {cluster: {nodeName: n1}}} | nodeName
        {config: {cluster: {kubeconfig: /x}}} | kubeconfig
        {config: {cluster: {taint: {keyPrefix: node.kubernetes.io/}}}} | keyPrefix
        {config: {cluster: {taint: {keyPrefix: k8s.io/a}}}} | keyPrefix
        {config: {cluster: {formerTaintKeyPrefixes: [a.example/, evictd]}}} | formerTaintKeyPrefixes
        "#,
    );
    // It becomes part of an expression, which a quote would end.
    refuses(
        r#"{config: {cluster: {taint: {keyPrefix: "a.example/') || true || ('"}}}} | keyPrefix"#,
    );
}

/// A staged rollout takes hours, in which a container may start anew with the configuration before. Helm forgets what a hook has made.
#[test]
fn helm_leaves_old_configurations_there() {
    skip_if!(helm().err());
    let maps =
        |values: Value| -> Vec<Value> { rendered(&values).kind("ConfigMap").cloned().collect() };
    let all = maps(json!({}));
    let (configurations, others): (Vec<_>, Vec<_>) = all
        .iter()
        .partition(|map| map["data"]["config.yaml"].is_string());
    assert_eq!((configurations.len(), others.len()), (1, 2));
    let annotations = json!({
        "helm.sh/hook": "pre-install,pre-upgrade,pre-rollback",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    });
    let metadata = &configurations[0]["metadata"];
    assert_eq!(metadata["annotations"], annotations);
    assert_eq!(metadata["labels"]["evictd.dev/configuration"], "default");
    // Those hold what nodes have written: a hook would be made anew by each upgrade.
    let is_plain = |map: &&Value| map["metadata"].get("annotations").is_none();
    assert!(others.iter().all(is_plain));
    // Hooks come before the namespace.
    let made = maps(plain_values());
    assert!(made.iter().all(|map| is_plain(&map)));
}

/// What agents refuse never reaches them: a rollout would stop at its first nodes.
#[test]
fn a_fleet_brake_that_agents_refuse_is_not_rendered() {
    skip_if!(helm().err());
    refuses(
        r#"
        {fleetBrake: {slowNodes: 250}} | fleetBrake.pauseNodes: 20: must not be below slowNodes, which is 250
        {nodePools: [{name: a, nodeLabel: {key: pool, values: [a]}, config: {cluster: {fleetBrake: {slowNodes: 250}}}}]} | fleetBrake.pauseNodes: 20: must not be below slowNodes, which is 250
        {fleetBrake: {window: 0s}} | fleetBrake.window: 0s: must lie between 1s and 24h
        {fleetBrake: {pause: 48h}} | fleetBrake.pause: 48h: must lie between 1s and 24h
        {fleetBrake: {slowInterval: 23h59m61s}} | fleetBrake.slowInterval: 23h59m61s: must lie between 1s and 24h
        {fleetBrake: {window: 99999999999999999999h}} | must lie between 1s and 24h
        "#,
    );
    // Of the values of all and those of a pool.
    refuses(
        r#"
        {config: {graduatedAction: {brake: {}, throttle: {}}}} | config.graduatedAction.brake: is the former name of throttle
        {config: {graduatedAction: {brake: {pods: 1}}}, nodePools: [{name: a, nodeLabel: {key: pool, values: [a]}, config: {graduatedAction: {throttle: {pods: 1}}}}]} | config.graduatedAction.brake: is the former name of throttle
        "#,
    );
    for brake in [
        json!({"slowNodes": 20}),
        json!({"window": "1s", "pause": "24h", "slowInterval": "23h59m60s"}),
    ] {
        thresholds(&rendered(&json!({ "fleetBrake": brake }))).unwrap();
    }
}

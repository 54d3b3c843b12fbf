//! The manifests against the API's own types: what the API server would drop or refuse is found here.

use evictd_tests::{
    deploy::{self, Chart, all_objects, chart, helm::helm},
    prelude::*,
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::DaemonSet,
    core::v1::{ConfigMap, Namespace, ServiceAccount},
    networking::v1::NetworkPolicy,
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use serde::{Serialize, de::DeserializeOwned};

/// What the typed object makes of it.
fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let typed: T = serde_json::from_value(object.clone()).map_err(|e| e.to_string())?;
    serde_json::to_value(typed).map_err(|e| e.to_string())
}

/// Reads an object as its type and finds what the type does not know.
fn check(object: &Value) -> Result<(), String> {
    let kind = format!("{} {}", object["apiVersion"], object["kind"]).replace('"', "");
    let known = match kind.as_str() {
        "v1 Namespace" => typed::<Namespace>(object),
        "v1 ServiceAccount" => typed::<ServiceAccount>(object),
        "v1 ConfigMap" => typed::<ConfigMap>(object),
        "apps/v1 DaemonSet" => typed::<DaemonSet>(object),
        "networking.k8s.io/v1 NetworkPolicy" => typed::<NetworkPolicy>(object),
        "rbac.authorization.k8s.io/v1 ClusterRole" => typed::<ClusterRole>(object),
        "rbac.authorization.k8s.io/v1 ClusterRoleBinding" => typed::<ClusterRoleBinding>(object),
        "rbac.authorization.k8s.io/v1 Role" => typed::<Role>(object),
        "rbac.authorization.k8s.io/v1 RoleBinding" => typed::<RoleBinding>(object),
        "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy" => {
            typed::<ValidatingAdmissionPolicy>(object)
        }
        "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding" => {
            typed::<ValidatingAdmissionPolicyBinding>(object)
        }
        _ => return Err(format!("{kind} is none of the kinds that are checked")),
    }?;
    lost(object, &known, kind)
}

/// The first field that is in `object` and not the same in `known`.
fn lost(object: &Value, known: &Value, path: String) -> Result<(), String> {
    match (object, known) {
        (Value::Object(object), Value::Object(known)) => {
            object.iter().try_for_each(|(name, value)| {
                lost(
                    value,
                    known.get(name).unwrap_or(&Value::Null),
                    format!("{path}.{name}"),
                )
            })
        }
        (Value::Array(object), Value::Array(known)) if object.len() == known.len() => {
            let pairs = object.iter().zip(known).enumerate();
            pairs
                .into_iter()
                .try_for_each(|(i, (o, k))| lost(o, k, format!("{path}[{i}]")))
        }
        _ if object == known => Ok(()),
        _ => Err(format!(
            "{path}: {object} is not in the API's schema, which makes {known} of it"
        )),
    }
}

#[test]
fn the_plain_manifests_fit_the_schemas() {
    let objects = Chart::plain().unwrap();
    let count = objects.0.len();
    assert_eq!(count, 25, "an object has come or gone: is it checked?");
    for object in &objects.0 {
        check(object).unwrap();
    }
}

#[test]
fn the_chart_fits_the_schemas_whatever_is_switched_on() {
    skip_if!(helm().err());
    for values in [
        json!({"metrics": {"probes": false, "address": "::1"}, "hostMounts": {"bpffs": true}, "hostNetwork": true}),
        json!({"security": {"privileged": true}, "metrics": {"enabled": false},
               "log": {"format": "json", "filter": "info,evictd_ebpf=debug"}}),
        json!({"security": {"extraCapabilities": ["SYS_ADMIN"], "seLinuxOptions": null,
               "seccompProfile": {"type": "Localhost", "localhostProfile": "evictd.json"}}}),
        json!({"hostMounts": {"tracing": false, "propagation": ""}, "kubelet": {"configFile": "/etc/kubernetes/kubelet.yaml"},
               "image": {"digest": format!("sha256:{}", "0".repeat(64)), "pullSecrets": [{"name": "s"}]},
               "nodeSelector": {"a": "b"}, "affinity": {"nodeAffinity": {}}, "podLabels": {"a": "b"},
               "podAnnotations": {"a": "b"}, "commonLabels": {"c": "d"},
               "serviceAccount": {"annotations": {"a": "b"}},
               "extraEnv": [{"name": "EVICTD_LOG", "value": "debug"}], "networkPolicy": {"scrapers": []}}),
    ] {
        let rendered = helm()
            .unwrap()
            .render(&chart(), &values, "r", "kube-system");
        let objects = Chart(all_objects(&rendered.unwrap()).unwrap());
        let policies = objects.kind("NetworkPolicy");
        // It holds for no pod on the host's network.
        let has_policy = values["hostNetwork"] != json!(true);
        assert_eq!(policies.count(), usize::from(has_policy), "{values}");
        assert_eq!(objects.0.len(), 23 + usize::from(has_policy), "{values}");
        for object in &objects.0 {
            check(object).unwrap_or_else(|e| panic!("{values}: {e}"));
        }
    }
}

#[test]
fn a_misspelt_field_is_found() {
    let objects = Chart::plain().unwrap();
    let daemonset = &objects["DaemonSet"];
    for [part, field, value, expected] in rows(
        "
        /spec/template/spec | hostPid | true | hostPid: true is not in
        /spec/template/spec/containers/0 | readinesProbe | {} | readinesProbe
        /spec/template/spec/containers/0 | imagePullPolicy | 7 | invalid type
        /spec/updateStrategy | rollingUpdates | {maxSurge: 0} | rollingUpdates
        ",
    ) {
        let mut wrong = daemonset.clone();
        wrong.pointer_mut(part).unwrap()[field] = yaml(value);
        has(&check(&wrong).unwrap_err(), &[expected]);
    }
    let mut old = daemonset.clone();
    old["apiVersion"] = "extensions/v1beta1".into();
    check(&old).unwrap_err();
}

/// Everything that stands between the agent and its work, or that would be more than it needs.
#[test]
fn the_daemonset_is_what_docs_deploy_says() {
    let objects = Chart::plain().unwrap();
    objects.has(
        r#"
        pod/hostPID | true
        pod/priorityClassName | system-node-critical
        pod/tolerations | [{operator: Exists}]
        container/securityContext/privileged | false
        container/securityContext/allowPrivilegeEscalation | false
        container/securityContext/readOnlyRootFilesystem | true
        container/securityContext/seccompProfile/type | RuntimeDefault
        container/securityContext/capabilities/drop | [ALL]
        container/livenessProbe/httpGet | {path: /healthz, port: health}
        container/readinessProbe/httpGet | {path: /readyz, port: health}
        container/ports/1/name | health
        container/ports/0/name | metrics
        DaemonSet/spec/updateStrategy/rollingUpdate | {maxUnavailable: 1, maxSurge: 0}
        "#,
    );
    let container = objects.container();
    let amounts = &container["resources"];
    assert_eq!(amounts["limits"]["memory"], amounts["requests"]["memory"]);
    // Whatever is writable is named here.
    let mounts = container["volumeMounts"].as_array().unwrap();
    let writable = mounts.iter().filter(|m| m["readOnly"] != true);
    let writable: Vec<_> = writable.map(|m| &m["mountPath"]).collect();
    assert_eq!(
        writable,
        ["/var/lib/evictd", "/sys/fs/cgroup", "/sys/fs/bpf"]
    );
    // Every capability and every mount is explained where people look for it.
    let docs = fs::read_to_string(deploy::dir().join("../docs/deploy.md")).unwrap();
    let names = container["securityContext"]["capabilities"]["add"]
        .as_array()
        .unwrap()
        .iter();
    let explained = names.chain(mounts.iter().map(|m| &m["mountPath"]));
    for name in explained {
        has(&docs, &[&format!("`{}`", name.as_str().unwrap())]);
    }
}

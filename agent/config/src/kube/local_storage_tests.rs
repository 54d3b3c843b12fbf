//! Limits of local storage, from a pod and a summary as the API server and the kubelet write them.

use evictd_engine::{Layout, local_storage_excess};
use serde_json::{Value, json};

use crate::kube::{pod::read_pod, summary::read_summary};

fn excess(spec: Value, stats: Value, layout: Layout) -> Option<String> {
    let pod = read_pod("pod", &json!({"metadata": {"uid": "u"}, "spec": spec})).expect("a pod");
    let mut stats = stats;
    stats["podRef"] = json!({"uid": "u"});
    let summary =
        read_summary("summary", &json!({"node": {}, "pods": [stats]})).expect("a summary");
    local_storage_excess(&pod, &summary.pods["u"], layout).map(|excess| excess.message.text)
}

#[test]
fn each_limit_is_named_as_the_kubelet_names_it() {
    let one = Layout::default();
    let volumes = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Ki"}}]});
    let used = |bytes: Value| json!({"volume": [{"name": "v", "usedBytes": bytes}]});
    assert_eq!(
        excess(volumes.clone(), used(json!(1025)), one).as_deref(),
        Some("Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ")
    );
    assert_eq!(excess(volumes.clone(), used(json!(1024)), one), None);
    assert_eq!(excess(volumes, used(json!(null)), one), None);

    let limits = |amount: &str| {
        json!({"containers": [
            {"name": "a", "resources": {"limits": {"ephemeral-storage": amount}}},
            {"name": "b", "resources": {"limits": {"ephemeral-storage": "1Ki"}}},
        ]})
    };
    assert_eq!(
        excess(
            limits("1Ki"),
            json!({"ephemeral-storage": {"usedBytes": 2049}}),
            one
        )
        .as_deref(),
        Some("Pod ephemeral local storage usage exceeds the total limit of containers 2Ki. ")
    );
    let layers = json!({"containers": [{"name": "a", "rootfs": {"usedBytes": 1000}, "logs": {"usedBytes": 100}}]});
    assert_eq!(
        excess(limits("1Ki"), layers.clone(), one).as_deref(),
        Some("Container a exceeded its local ephemeral storage limit \"1Ki\". ")
    );
    // Where the layers lie on another filesystem, only the logs count. A limit of zero is none.
    assert_eq!(
        excess(
            limits("1Ki"),
            layers.clone(),
            Layout {
                dedicated_image_fs: true,
                ..one
            }
        ),
        None
    );
    assert_eq!(excess(limits("0"), layers, one), None);
}

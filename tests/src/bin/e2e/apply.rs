//! Applies and removes objects of any kind.

use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};

use evictd_tests::prelude::*;

pub const MANAGER: &str = "evictd-e2e";

pub fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("object", |types| &types.kind)
}

/// `DaemonSet evictd`.
pub fn title(object: &DynamicObject) -> String {
    format!("{} {}", kind(object), object.name_any())
}

pub async fn apply(client: &Client, object: &DynamicObject) -> Result<()> {
    let api = api_of(client, object)?;
    let params = PatchParams::apply(MANAGER).force();
    let patch = Patch::Apply(object);
    let applied = api.patch(&object.name_any(), &params, &patch).await;
    applied.with_context(|| format!("cannot apply {}", title(object)))?;
    say!("e2e: applied {}", title(object));
    Ok(())
}

/// Deletes one; one that is not there is no error.
pub async fn remove(client: &Client, object: &DynamicObject) -> Result<()> {
    let api = api_of(client, object)?;
    let deleted = api
        .delete(&object.name_any(), &DeleteParams::default())
        .await;
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other
            .map(drop)
            .with_context(|| format!("cannot remove {}", title(object))),
    }
}

pub async fn existing(client: &Client, object: &DynamicObject) -> Result<Option<DynamicObject>> {
    let api = api_of(client, object)?;
    let found = api.get_opt(&object.name_any()).await;
    found.with_context(|| format!("cannot look for {}", title(object)))
}

/// Each namespaced object of the manifests says its namespace.
fn api_of(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.as_ref().context("an object without a kind")?;
    let kind = GroupVersionKind::try_from(types).with_context(|| title(object))?;
    let (client, resource) = (client.clone(), ApiResource::from_gvk(&kind));
    Ok(match object.namespace() {
        Some(namespace) => Api::namespaced_with(client, &namespace, &resource),
        None => Api::all_with(client, &resource),
    })
}

//! From a request to its handler.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Instant,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::{Response, header},
};

use super::{
    answer::{answer, no_right, not_found, scripted, terminating, unauthorized},
    configmaps, exec, lock, node,
    objects::{self, Collection},
    others, pods, policies, scrapers,
    state::{InjectedFault, Seen, State},
    watch::{self, Wanted},
};

/// Longest body that is read.
const BODY_BYTES: usize = 1 << 20;

pub fn router(state: Arc<Mutex<State>>) -> Router {
    Router::new().fallback(move |request: Request| {
        let state = Arc::clone(&state);
        async move { serve(&state, request).await }
    })
}

async fn serve(state: &Mutex<State>, mut request: Request) -> Response<Body> {
    let upgrade = exec::is_wanted(&request).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES).await.unwrap_or_default();
    let header = |name| {
        let value = parts.headers.get(name);
        value.and_then(|v| v.to_str().ok()).unwrap_or_default()
    };
    let accept = header(header::ACCEPT).to_owned();
    let seen = Seen {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        content_type: header(header::CONTENT_TYPE).to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
        at: Instant::now(),
    };
    let faults = {
        let mut state = lock(state);
        state.requests.push(seen.clone());
        let bearer = header(header::AUTHORIZATION).strip_prefix("Bearer ");
        if state.token.is_some() && bearer != state.token.as_deref() {
            return unauthorized();
        }
        state.meets(&seen.method, &seen.path)
    };
    match faults {
        Some(InjectedFault::Status(code)) => return scripted(code),
        Some(InjectedFault::NoRight) => return no_right(&seen),
        Some(InjectedFault::Empty) => return Response::default(),
        Some(InjectedFault::Terminating) => return terminating(),
        Some(InjectedFault::Hang) => return std::future::pending().await,
        Some(InjectedFault::Slow(delay)) => tokio::time::sleep(delay).await,
        Some(InjectedFault::Lost) => {
            drop(dispatch(&mut lock(state), seen, &accept));
            return std::future::pending().await;
        }
        None => {}
    }
    if let Some(upgrade) = upgrade {
        return exec::run(&lock(state), &parts, upgrade);
    }
    dispatch(&mut lock(state), seen, &accept)
}

fn dispatch(state: &mut State, seen: Seen, accept: &str) -> Response<Body> {
    let Seen {
        method,
        path,
        query,
        content_type,
        body,
        ..
    } = seen;
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    let all = |state: &mut State, collection, namespace: Option<&str>| {
        let query = decode(&query);
        let wanted = Wanted::new(namespace, &query, accept);
        watch::answer_with(state, collection, wanted, &query)
    };
    match (method.as_str(), parts.as_slice()) {
        ("GET", ["api", "v1", "pods"]) => all(state, Collection::Pods, None),
        ("GET", ["version"]) => others::version(),
        ("GET", ["api", "v1", "namespaces", ns, "pods"]) => all(state, Collection::Pods, Some(ns)),
        ("GET", ["api", "v1", "namespaces", ns, "pods", name]) => pods::get(state, ns, name),
        ("GET", ["api", "v1", "nodes"]) => all(state, Collection::Nodes, None),
        ("GET", ["api", "v1", "namespaces"]) => all(state, Collection::Namespaces, None),
        ("GET", ["api", "v1", "namespaces", ns, "configmaps"]) => {
            all(state, Collection::ConfigMaps, Some(ns))
        }
        ("GET", ["api", "v1", "namespaces", ns, "configmaps", name]) => {
            objects::get(state, Collection::ConfigMaps, ns, name)
        }
        ("PATCH", ["api", "v1", "namespaces", ns, "configmaps", name])
            if content_type.contains("apply-patch") =>
        {
            objects::apply(state, Collection::ConfigMaps, ns, name, body)
        }
        ("DELETE", ["api", "v1", "namespaces", ns, "configmaps", name]) => {
            objects::delete(state, Collection::ConfigMaps, ns, name)
        }
        ("GET", ["apis", "evictd.io", "v1alpha1", "evictionpolicies"]) if state.crd => {
            all(state, Collection::Policies, None)
        }
        ("PATCH", ["api", "v1", "namespaces", ns, "configmaps", name]) => {
            configmaps::patch(state, (ns, name), &content_type, &body)
        }
        ("GET", ["apis", "evictd.io", "v1alpha1", "podevictionpolicies"]) if state.crd => {
            all(state, Collection::TenantPolicies, None)
        }
        (
            "PATCH",
            [
                "apis",
                "evictd.io",
                "v1alpha1",
                "evictionpolicies",
                name,
                "status",
            ],
        ) if state.crd => policies::patch_status(state, name, &content_type, &body),
        ("PATCH", ["api", "v1", "namespaces", ns, "pods", name, "status"]) => {
            pods::patch_status(state, ns, name, &body)
        }
        ("DELETE", ["api", "v1", "namespaces", ns, "pods", name]) => {
            pods::delete(state, ns, name, &body)
        }
        ("POST", ["api", "v1", "namespaces", ns, "pods", name, "eviction"]) => {
            pods::evict(state, ns, name, &body, is_dry_run(&query))
        }
        ("GET", ["api", "v1", "nodes", name]) => node::get(state, name),
        ("GET", ["api", "v1", "nodes", _, "proxy", "configz"]) => answer(200, &state.configz),
        ("PATCH", ["api", "v1", "nodes", name, "status"]) => node::patch_status(state, name, &body),
        ("PATCH", ["api", "v1", "nodes", name]) => node::patch(state, name, &content_type, &body),
        ("POST", ["apis", "events.k8s.io", "v1", "namespaces", ns, "events"]) => {
            pods::create_event(state, ns, body, is_dry_run(&query))
        }
        (
            "PATCH",
            [
                "apis",
                "events.k8s.io",
                "v1",
                "namespaces",
                ns,
                "events",
                name,
            ],
        ) => pods::patch_event(state, ns, name, &body),
        (
            "POST",
            [
                "apis",
                "authorization.k8s.io",
                "v1",
                "selfsubjectaccessreviews",
            ],
        ) => node::review(state, body),
        ("POST", ["apis", "authentication.k8s.io", "v1", "tokenreviews"]) => {
            scrapers::token_review(state, body)
        }
        ("POST", ["apis", "authorization.k8s.io", "v1", "subjectaccessreviews"]) => {
            scrapers::access_review(state, body)
        }
        // A collection that is not there, such as policies without their definition.
        ("GET", ["apis", _, _, _]) if !state.others.contains_key(&path) => {
            not_found("the server could not find the requested resource", &path)
        }
        _ => others::at(state, &method, &path),
    }
}

fn is_dry_run(query: &str) -> bool {
    decode(query).get("dryRun").is_some_and(|v| v == "All")
}

pub(super) fn decode(query: &str) -> BTreeMap<String, String> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    pairs.into_owned().collect()
}

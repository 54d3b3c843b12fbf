//! From a request to its handler.

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::Request,
    http::{Response, header},
};

use super::{
    answer::{no_right, scripted, terminating, unauthorized},
    exec, rbac, reviews,
    state::{InjectedFault, Seen, State},
    verbs,
};
use crate::prelude::*;

/// Longest body that is read.
const BODY_BYTES: usize = 1 << 20;

pub fn router(state: Arc<Mutex<State>>) -> Router {
    Router::new().fallback(move |request: Request| {
        let state = Arc::clone(&state);
        async move { serve(&state, request).await }
    })
}

async fn serve(state: &Arc<Mutex<State>>, mut request: Request) -> Response<Body> {
    let upgrade = exec::is_wanted(&request).then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES).await.unwrap_or_default();
    let header = |name| {
        let value = parts.headers.get(name);
        value.and_then(|v| v.to_str().ok()).unwrap_or_default()
    };
    let seen = Seen {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        content_type: header(header::CONTENT_TYPE).to_owned(),
        accept: header(header::ACCEPT).to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
        at: Instant::now(),
    };
    let faults = {
        let mut state = state.lock();
        state.requests.push(seen.clone());
        let bearer = header(header::AUTHORIZATION).strip_prefix("Bearer ");
        if state.token.is_some() && bearer != state.token.as_deref() {
            return unauthorized();
        }
        if state.is_agents_alone && !rbac::is_granted(&seen) {
            state
                .overstepped
                .push(format!("{} {}", seen.method, seen.path));
            return no_right(&seen);
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
            drop(dispatch(&mut state.lock(), seen));
            return std::future::pending().await;
        }
        Some(InjectedFault::Cut) => {
            drop(dispatch(&mut state.lock(), seen));
            return cut();
        }
        Some(InjectedFault::Late(delay)) => {
            let state = Arc::clone(state);
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                drop(dispatch(&mut state.lock(), seen));
            });
            return cut();
        }
        None => {}
    }
    if let Some(upgrade) = upgrade {
        return exec::run(&state.lock(), &parts, upgrade);
    }
    dispatch(&mut state.lock(), seen)
}

/// An answer in whose middle the connection ends.
fn cut() -> Response<Body> {
    let end = futures::stream::once(async { Err::<&str, _>("cut") });
    Response::new(Body::from_stream(end))
}

fn dispatch(state: &mut State, seen: Seen) -> Response<Body> {
    let (path, body) = (seen.path.as_str(), seen.body);
    let pairs = form_urlencoded::parse(seen.query.as_bytes());
    let query: BTreeMap<String, String> = pairs.into_owned().collect();
    let is_dry_run = query.get("dryRun").is_some_and(|value| value == "All");
    if !state.crd && path.starts_with("/apis/evictd.io/") {
        return verbs::nothing_at(path);
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    match (seen.method.as_str(), last) {
        ("GET", _) => verbs::get(state, path, &query, &seen.accept),
        ("PATCH", _) => verbs::patch(state, path, &seen.content_type, &body),
        ("DELETE", _) => verbs::delete(state, path, &body),
        ("POST", "eviction") => verbs::evict(state, path, &body, is_dry_run),
        ("POST", "events") => verbs::create_event(state, path, body, is_dry_run),
        ("POST", "selfsubjectaccessreviews") => reviews::own_rights(state, body),
        ("POST", "tokenreviews") => reviews::token(state, body),
        ("POST", "subjectaccessreviews") => reviews::access(state, body),
        _ => verbs::nothing_at(path),
    }
}

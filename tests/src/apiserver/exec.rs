//! Commands in containers (`pods/exec`): a websocket with the subprotocol of the API server. Each message begins with the number
//! of its stream.

use axum::{
    body::Body,
    extract::Request,
    http::{Response, StatusCode, header, request::Parts},
};
use futures::SinkExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::{answer::not_found, state::State};

const PROTOCOL: &str = "v5.channel.k8s.io";
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;

/// Outcome of a command in a container.
#[derive(Clone, Debug, Default)]
pub struct Ran {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

/// Whether a request wants to run a command.
pub(super) fn is_wanted(request: &Request) -> bool {
    let is_exec = request.uri().path().ends_with("/exec");
    is_exec && request.headers().contains_key(header::SEC_WEBSOCKET_KEY)
}

/// Answers with what the state has for this command, and with a 404 where it has nothing.
pub(super) fn run(state: &State, parts: &Parts, upgrade: OnUpgrade) -> Response<Body> {
    let path: Vec<&str> = parts.uri.path().split('/').collect();
    let [.., namespace, "pods", pod, "exec"] = path[..] else {
        return not_found("pods", parts.uri.path());
    };
    let key = (format!("{namespace}/{pod}"), command(parts));
    let Some(ran) = state.commands.get(&key).cloned() else {
        return not_found("commands", &key.1);
    };
    let accept = parts.headers.get(header::SEC_WEBSOCKET_KEY);
    let accept = derive_accept_key(accept.map_or(&[], |key| key.as_bytes()));
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let socket = TokioIo::new(upgraded);
        let mut socket = WebSocketStream::from_raw_socket(socket, Role::Server, None).await;
        for (stream, bytes) in messages(&ran) {
            let message = [&[stream], &bytes[..]].concat();
            if socket.send(Message::binary(message)).await.is_err() {
                return;
            }
        }
        // The client may have gone first.
        let _ = socket.close(None).await;
    });
    let answer = Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(header::UPGRADE, "websocket")
        .header(header::CONNECTION, "Upgrade")
        .header(header::SEC_WEBSOCKET_ACCEPT, accept)
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL);
    answer.body(Body::empty()).unwrap_or_default()
}

/// The words of the command, which are repeated parameters of the query.
fn command(parts: &Parts) -> String {
    let query = parts.uri.query().unwrap_or_default();
    let words = form_urlencoded::parse(query.as_bytes()).filter(|(key, _)| key == "command");
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

fn messages(ran: &Ran) -> Vec<(u8, Vec<u8>)> {
    let status: Value = match ran.code {
        0 => json!({"metadata": {}, "status": "Success"}),
        code => json!({
            "metadata": {},
            "status": "Failure",
            "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
        }),
    };
    vec![
        (STDOUT, ran.stdout.clone().into_bytes()),
        (STDERR, ran.stderr.clone().into_bytes()),
        (STATUS, status.to_string().into_bytes()),
    ]
}

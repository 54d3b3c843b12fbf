//! Scripted HTTP servers on loopback: one for each pod that gates ask, all on the same port, each at an address of its
//! own, as pods have them.

use std::net::{Ipv4Addr, SocketAddr};

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{Response, header},
};
use rustls::ServerConfig;

use crate::{prelude::*, serving::Serving, tls::Authority};

#[derive(Clone, Debug)]
pub enum Script {
    Json(u16, Value),
    Redirect(String),
    /// Sends so many bytes, slowly enough to notice a client that reads them all.
    Huge(usize),
    /// Sends nothing, and keeps the connection open.
    Hang,
    EndlessHead,
}

#[derive(Clone, Debug)]
pub struct Asked {
    /// With the query.
    pub path: String,
    /// `Authorization`.
    pub authorization: Option<String>,
}

#[derive(Default)]
struct State {
    scripts: BTreeMap<String, Script>,
    asked: Vec<Asked>,
    sent: usize,
}

/// A server that answers until it is dropped.
pub struct Scripted {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    running: Option<Serving>,
}

impl Scripted {
    /// Starts a server at `127.0.0.<host>`, on a free port.
    pub fn start(host: u8) -> Result<Self> {
        Self::start_at(host, 0)
    }

    /// Starts a server with TLS at `127.0.0.<host>`, on a free port.
    pub fn start_tls(host: u8, authority: &Authority) -> Result<Self> {
        Self::start_tls_at(host, 0, authority, &[])
    }

    /// Starts a server with TLS on this port, with more names in the certificate.
    pub fn start_tls_at(
        host: u8,
        port: u16,
        authority: &Authority,
        names: &[&str],
    ) -> Result<Self> {
        let ip = Ipv4Addr::new(127, 0, 0, host);
        let address = ip.to_string();
        let names: Vec<&str> = names.iter().copied().chain([address.as_str()]).collect();
        Self::start_with((ip, port).into(), Some(authority.server(&names)?))
    }

    /// Starts a server at `127.0.0.<host>`, on the port of another one.
    pub fn start_at(host: u8, port: u16) -> Result<Self> {
        Self::start_with((Ipv4Addr::new(127, 0, 0, host), port).into(), None)
    }

    fn start_with(address: SocketAddr, tls: Option<Arc<ServerConfig>>) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let router = Router::new().fallback(move |request: Request| {
            let state = Arc::clone(&shared);
            async move { answer(&state, request.into_parts().0).await }
        });
        let (address, running) = Serving::http("scripted", address, router, tls)?;
        Ok(Self {
            state,
            address,
            running: Some(running),
        })
    }

    /// Sets what a path answers from now on. The path is compared with its query.
    pub fn set(&self, path: &str, script: Script) {
        self.state().scripts.insert(path.to_owned(), script);
    }

    /// Sets a JSON answer with status 200 for a path.
    pub fn json(&self, path: &str, body: Value) {
        self.set(path, Script::Json(200, body));
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.state().asked.clone()
    }

    /// Bytes of huge answers that were taken off its hands.
    pub fn sent(&self) -> usize {
        self.state().sent
    }

    /// The address without the port.
    pub fn ip(&self) -> String {
        self.address.ip().to_string()
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Goes away: connections are cut, new ones are refused.
    pub fn go_away(&mut self) {
        self.running = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

async fn answer(state: &Arc<Mutex<State>>, request: axum::http::request::Parts) -> Response<Body> {
    let path = request
        .uri
        .path_and_query()
        .map_or("", |p| p.as_str())
        .to_owned();
    let authorization = request.headers.get(header::AUTHORIZATION);
    let authorization = authorization
        .and_then(|v| v.to_str().ok())
        .map(str::to_owned);
    let script = {
        let mut state = state.lock();
        let script = state.scripts.get(&path).cloned();
        state.asked.push(Asked {
            path,
            authorization,
        });
        script
    };
    let mut response = Response::new(Body::empty());
    match script {
        None => *response.status_mut() = axum::http::StatusCode::NOT_FOUND,
        Some(Script::Json(code, body)) => {
            *response.body_mut() = Body::from(body.to_string());
            *response.status_mut() = code.try_into().unwrap_or_default();
        }
        Some(Script::Redirect(to)) => {
            *response.status_mut() = axum::http::StatusCode::TEMPORARY_REDIRECT;
            if let Ok(to) = to.parse() {
                response.headers_mut().insert(header::LOCATION, to);
            }
        }
        Some(Script::Huge(bytes)) => {
            const PIECE: usize = 64 << 10;
            let state = Arc::clone(state);
            let pieces = (0..bytes / PIECE).map(move |_| {
                state.lock().sent += PIECE;
                Ok::<_, io::Error>(vec![b' '; PIECE])
            });
            *response.body_mut() = Body::from_stream(futures::stream::iter(pieces));
        }
        Some(Script::Hang) => tokio::time::sleep(Duration::MAX).await,
        Some(Script::EndlessHead) => {
            for i in 0..3000 {
                let name = axum::http::HeaderName::try_from(format!("x-{i}"));
                if let (Ok(name), Ok(value)) = (name, "x".repeat(64).parse()) {
                    response.headers_mut().insert(name, value);
                }
            }
        }
    }
    response
}

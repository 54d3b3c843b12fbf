//! A scripted API server: real HTTP on loopback, answers in the forms that a 1.36 server was recorded with
//! (`tests/recordings/api`), a little state (one node, its pods, events), faults on request, and a record of every
//! request, so that tests can count and compare them.

mod answer;
mod exec;
mod objects;
mod rbac;
mod reviews;
mod route;
mod state;
mod verbs;
mod watch;

use std::net::{Ipv4Addr, SocketAddr};

use evictd_kube::client::ApiClient;
use rustls::ServerConfig;

use crate::{prelude::*, serving::Serving, tls::Authority};

pub use exec::Ran;
pub use objects::Collection;
pub use state::{Fault, InjectedFault, Seen, State};

pub const NODE: &str = "n2";

/// A server that answers until it is dropped or sent away.
pub struct ApiServer {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    running: Option<Serving>,
    tls: Option<(Authority, Arc<ServerConfig>)>,
    dir: tempfile::TempDir,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let overstepped = std::mem::take(&mut self.state().overstepped);
            assert!(overstepped.is_empty(), "no role grants {overstepped:?}");
        }
    }
}

impl ApiServer {
    /// Starts a server on a free port.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// Starts the server with TLS, and an authority of its own.
    pub fn start_tls() -> Result<Self> {
        let authority = Authority::new()?;
        let config = authority.server(&["127.0.0.1"])?;
        Self::start_with(Some((authority, config)))
    }

    /// Starts the server with TLS, for clients with a certificate of its own authority only: its kubeconfig has one.
    pub fn start_mutual_tls() -> Result<Self> {
        let authority = Authority::new()?;
        let config = authority.server_for_members(&["127.0.0.1"])?;
        Self::start_with(Some((authority, config)))
    }

    fn start_with(tls: Option<(Authority, Arc<ServerConfig>)>) -> Result<Self> {
        let mut server = Self {
            state: Arc::new(Mutex::new(State::new())),
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            running: None,
            tls,
            dir: tempfile::tempdir()?,
        };
        server.come_back()?;
        Ok(server)
    }

    /// Goes away: connections are cut, new ones are refused.
    pub fn go_away(&mut self) {
        self.running = None;
        self.state().watchers.clear();
    }

    /// Answers again, on the same port, with the state it had.
    pub fn come_back(&mut self) -> Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let router = route::router(Arc::clone(&self.state));
        let tls = self.tls.as_ref().map(|(_, config)| Arc::clone(config));
        let (address, running) = Serving::http("apiserver", self.address, router, tls)?;
        (self.address, self.running) = (address, Some(running));
        Ok(())
    }

    /// Answers with a certificate of another authority from now on, which clients are told to `trust` before that.
    pub fn rotate_authority(&mut self, trust: impl FnOnce(&str) -> io::Result<()>) -> Result<()> {
        let authority = Authority::new()?;
        trust(&authority.pem())?;
        self.go_away();
        let config = authority.server(&["127.0.0.1"])?;
        self.tls = Some((authority, config));
        self.come_back()
    }

    /// Locks what the server knows and was asked; answers wait while this is held.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Has so many requests go wrong, as [`State::fails`].
    pub fn fails(
        &self,
        method: &'static str,
        path: &'static str,
        times: usize,
        what: impl Into<InjectedFault>,
    ) {
        self.state().fails(method, path, times, what);
    }

    /// Requests of a method whose path contains a text.
    pub fn count(&self, method: &str, path: &str) -> usize {
        self.state().count(method, path)
    }

    /// A client of this server, with a kubeconfig in [`Self::dir`].
    pub async fn client(&self) -> Arc<ApiClient> {
        let kubeconfig = self.kubeconfig(self.dir.path()).expect("a kubeconfig");
        let client = ApiClient::open(Some(kubeconfig)).await;
        Arc::new(client.expect("a client"))
    }

    /// `http://127.0.0.1:port`, or `https`.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Directory of the token file of [`Self::client`].
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Certificate that a client needs to trust the server, as PEM; empty without TLS.
    pub fn authority(&self) -> String {
        let authority = self.tls.as_ref().map(|(authority, _)| authority.pem());
        authority.unwrap_or_default()
    }

    /// Writes a kubeconfig that leads here, with a token file beside it, and returns its path.
    pub fn kubeconfig(&self, dir: &Path) -> Result<PathBuf> {
        let token = dir.join("token");
        fs::write(&token, "first")?;
        let path = dir.join("kubeconfig");
        let mut cluster = json!({"server": self.url()});
        if self.tls.is_some() {
            let authority = dir.join("ca.crt");
            fs::write(&authority, self.authority())?;
            cluster["certificate-authority"] = json!(authority);
        }
        let mut user = json!({"tokenFile": token});
        if let Some((authority, _)) = &self.tls {
            let (certificate, key) = authority.member("system:masters")?;
            let files = [("client-certificate", certificate), ("client-key", key)];
            for (field, content) in files {
                let path = dir.join(field);
                fs::write(&path, content)?;
                user[field] = json!(path);
            }
        }
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        fs::write(&path, config.to_string())?;
        Ok(path)
    }

    /// Waits until the condition holds; false when it does not in time.
    pub fn wait(&self, timeout: Duration, condition: impl Fn(&State) -> bool) -> bool {
        until(timeout, || condition(&self.state()))
    }
}

/// A pod in the form of the recordings.
pub fn pod(name: &str, uid: &str, qos: &str, priority: i32, request: Option<&str>) -> Value {
    let resources = match (qos, request) {
        ("Guaranteed", Some(r)) => json!({
            "requests": {"cpu": "10m", "memory": r},
            "limits": {"cpu": "10m", "memory": r},
        }),
        (_, Some(r)) => json!({"requests": {"cpu": "10m", "memory": r}}),
        (_, None) => json!({}),
    };
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid,
            "creationTimestamp": "2026-11-21T02:51:55Z",
            "labels": {"app": name},
        },
        "spec": {
            "containers": [{"name": "c", "image": "x", "resources": resources}],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "nodeName": NODE,
            "priority": priority,
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": null, "lastTransitionTime": null}],
            "qosClass": qos,
        },
    })
}

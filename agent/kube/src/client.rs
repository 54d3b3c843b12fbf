//! The way to the API server: one client, short requests with a deadline, and a token that is read again when the
//! server no longer takes the old one.

use std::{
    env, io,
    net::IpAddr,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use evictd_policy::{
    evaluator::ObjectReader,
    gate::{Answer, ClusterAddresses, parse_answer},
};
use evictd_sys::mutex::locked;
use futures::future::BoxFuture;
use http::{Method, Request, uri::Scheme};
use hyper_timeout::TimeoutConnector;
use hyper_util::{client::legacy::connect::HttpConnector, rt::TokioExecutor};
use ipnet::IpNet;
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tower::ServiceBuilder;

use super::counters::Counters;

/// Time that a request may take before it counts as lost.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// Time that a request may take that removes a pod, or sets a condition of one that is asked to go, and each write while
/// webhooks are slow. The API server waits for a webhook for up to 30 s, goes on without it where it may fail
/// (`failurePolicy: Ignore`), and answers within 34 s (`requestTimeoutUpperBound`). What is not waited for is not carried out.
pub const ADMISSION_DEADLINE: Duration = Duration::from_secs(35);
/// How long writes have that time after one that had no answer within the usual one, until one has no answer within that
/// either: not the first, and no more than every second, is waited for in vain on a connection that is dead.
const SLOW_WRITES: Duration = Duration::from_secs(600);
/// How long the start of an agent waits for what it can begin without: memory may be short at this moment.
pub const PATIENCE_AT_START: Duration = Duration::from_millis(500);
/// Variable with the address of the Service `kubernetes`, in every pod.
const SERVICE_HOST: &str = "KUBERNETES_SERVICE_HOST";
/// Time that the start waits for the API server's name to be looked up.
const LOOKUP: Duration = Duration::from_secs(2);
/// Time that a credential plugin of the kubeconfig may take: at the start, and later.
const PLUGIN_AT_START: Duration = Duration::from_secs(5);
const PLUGIN: Duration = Duration::from_secs(60);
/// Longer than a watch may be silent: it ends by itself after less than five minutes.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// The cause of a 429 by which a PodDisruptionBudget refuses an eviction (`policyv1.DisruptionBudgetCause`).
const DISRUPTION_BUDGET: &str = "DisruptionBudget";

/// Interval at which certificates are read again while the server cannot be reached.
const RENEWAL: Duration = Duration::from_secs(30);
/// A connection without traffic is probed after this time and then at these intervals; after so many probes without an
/// answer it is lost. About half a minute in all, as client-go's HTTP/2 pings.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Why there is no way to the API server at all: bad input.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig.
    #[error("cluster.kubeconfig: {}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Description of what is wrong with the file.
        reason: String,
    },
    /// No kubeconfig, and not inside a pod.
    #[error("cluster.kubeconfig: is not set, and there is no service account: {0}")]
    InCluster(String),
    /// TLS or the token.
    #[error("cluster: {0}")]
    Client(String),
}

/// Why a request did not do what it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The server answered with an error.
    #[error("{code} {reason}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// `reason` of the Status, `NotFound` for instance.
        reason: String,
        /// `message` of the Status.
        message: String,
        /// `reason` of each of its `details.causes`.
        causes: Vec<String>,
    },
    /// No answer.
    #[error("{0}")]
    Unanswered(String),
}

impl ApiError {
    /// The HTTP status, 0 without an answer.
    pub fn code(&self) -> u16 {
        match self {
            Self::Refused { code, .. } => *code,
            Self::Unanswered(_) => 0,
        }
    }

    /// Whether a right is missing, or an admission policy refuses: not for a namespace that is being deleted, which
    /// takes no new objects.
    pub fn is_forbidden(&self) -> bool {
        self.code() == 403 && !self.has_cause("NamespaceTerminating")
    }

    /// Whether the server's authorizer refuses: the agent lacks the right, whatever the object. Its words name the
    /// user, as `pods "a" is forbidden: User "b" cannot create resource "pods/eviction" in API group ""`; an admission
    /// policy and a webhook name themselves there, and may let the next object through.
    pub fn is_missing_right(&self) -> bool {
        let Self::Refused {
            code: 403, message, ..
        } = self
        else {
            return false;
        };
        let parts = message.split_once(" is forbidden: User \"");
        parts.is_some_and(|(object, rest)| {
            !object.contains(" denied ") && rest.contains("\" cannot ")
        })
    }

    /// Whether an admission webhook refuses, with whatever status it likes (`ToStatusErr`): a 404 says nothing of the
    /// object then.
    pub fn is_denied_by_webhook(&self) -> bool {
        let Self::Refused { message, .. } = self else {
            return false;
        };
        message.starts_with("admission webhook ") && message.contains(" denied the request")
    }

    /// Whether the server names this reason among its `details.causes`.
    pub fn has_cause(&self, reason: &str) -> bool {
        matches!(self, Self::Refused { causes, .. } if causes.iter().any(|cause| cause == reason))
    }

    /// Whether the server would say the same to a request about any other object: no answer, a token that it does not
    /// take, a server or a proxy before it that is overloaded or away. A 500 may be about the object: a webhook that
    /// fails, two budgets for one pod.
    pub fn is_server_wide(&self) -> bool {
        match self.code() {
            _ if self.is_denied_by_webhook() => false,
            429 => !self.has_cause(DISRUPTION_BUDGET),
            code => matches!(code, 0 | 401 | 502..=504),
        }
    }

    /// Whether there is an object of that name. Another 409 is a conflict, with a quota's count for instance, that has
    /// created nothing.
    pub fn is_already_there(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// Whether a PodDisruptionBudget refuses. Any other 429 is a server that is busy.
    pub fn is_budget(&self) -> bool {
        self.code() == 429 && self.has_cause(DISRUPTION_BUDGET)
    }

    /// Whether the server may have carried out the request all the same: its answer is lost, or was not waited for.
    pub fn may_be_done(&self) -> bool {
        matches!(self.code(), 0 | 500..)
    }

    /// Whether the same request may do better later: no answer, an overloaded or failing server, an old token.
    pub fn is_retryable(&self) -> bool {
        matches!(self.code(), 0 | 401 | 429 | 500..)
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct ApiRequest<'a> {
    /// `GET`, ...
    pub method: Method,
    /// Path of the request, with the query.
    pub path: String,
    /// Media type of the body.
    pub content_type: &'static str,
    /// Media type of the answer.
    pub accept: &'static str,
    /// Body of the request; null sends none.
    pub body: &'a Value,
    /// Longest time that the request may take. A write with the usual one has more while webhooks are slow.
    pub deadline: Duration,
    /// Whether a 403 is no news: it is neither counted nor logged.
    pub may_be_forbidden: bool,
}

/// `application/json`.
pub const JSON: &str = "application/json";
/// Lists have the metadata of their objects alone.
pub const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// `application/strategic-merge-patch+json`: lists with a merge key are merged.
pub const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
/// `application/merge-patch+json`: lists are replaced.
pub const MERGE: &str = "application/merge-patch+json";

impl<'a> ApiRequest<'a> {
    /// A request with the usual deadline.
    pub fn new(
        method: Method,
        path: impl Into<String>,
        content_type: &'static str,
        body: &'a Value,
    ) -> Self {
        Self {
            method,
            path: path.into(),
            content_type,
            accept: JSON,
            body,
            deadline: DEADLINE,
            may_be_forbidden: false,
        }
    }

    /// A request for what is at a path.
    pub fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path, JSON, &Value::Null)
    }

    /// Whether it changes nothing, or an Event, or asks for the agent's own rights or a scraper's.
    fn is_harmless(&self) -> bool {
        let of = |group: &str| self.path.starts_with(&format!("/apis/{group}/"));
        self.method == Method::GET
            || of("events.k8s.io")
            || of("authorization.k8s.io")
            || of("authentication.k8s.io")
    }
}

/// Certificates by which a connection is trusted: the authorities', and the client's own.
#[derive(Debug, PartialEq)]
struct Certificates {
    authorities: Option<Vec<Vec<u8>>>,
    own: Option<Vec<u8>>,
}

impl Certificates {
    fn of(config: &Config) -> Self {
        let own = config.auth_info.client_certificate.as_ref();
        Self {
            authorities: config.root_cert.clone(),
            own: own.and_then(|path| std::fs::read(path).ok()),
        }
    }
}

/// The certificates in use, and when others were looked for.
#[derive(Debug)]
struct Renewal {
    in_use: Certificates,
    looked: Option<Instant>,
}

/// The way to the API server.
pub struct ApiClient {
    kubeconfig: Option<PathBuf>,
    client: Mutex<Client>,
    /// Counts the clients: what was begun with another one than the present has to be begun anew.
    generation: AtomicU64,
    certificates: Mutex<Renewal>,
    api_server: Vec<IpAddr>,
    shadow: watch::Sender<bool>,
    /// When a write had no answer within [`DEADLINE`]; `None` where the last one had none within [`ADMISSION_DEADLINE`].
    unanswered_write: Mutex<Option<Instant>>,
    is_forbidden_logged: AtomicBool,
    lacks_evictions: AtomicBool,
    /// Counters of the client.
    pub counters: Arc<Counters>,
}

impl ApiClient {
    /// Opens the way; nothing is sent yet. Without a kubeconfig the pod's service account is used.
    ///
    /// # Errors
    /// A kubeconfig or service account that cannot be used. A server that does not answer is none.
    pub async fn open(kubeconfig: Option<PathBuf>) -> Result<Self, AccessError> {
        let config = config(kubeconfig.as_ref()).await?;
        let api_server = addresses_of(&config.cluster_url).await;
        let certificates = Mutex::new(Renewal {
            in_use: Certificates::of(&config),
            looked: None,
        });
        let client = match connect(config.clone(), PLUGIN_AT_START).await {
            // The node is watched meanwhile; the first 401 has the plugin run again.
            Err(error) if config.auth_info.exec.is_some() => {
                tracing::warn!(%error, "the credential plugin is not waited for");
                client(without_plugin(config))?
            }
            connected => connected?,
        };
        Ok(Self {
            kubeconfig,
            client: Mutex::new(client),
            generation: AtomicU64::new(0),
            certificates,
            api_server,
            shadow: watch::Sender::new(false),
            unanswered_write: Mutex::default(),
            is_forbidden_logged: AtomicBool::new(false),
            lacks_evictions: AtomicBool::new(false),
            counters: Arc::default(),
        })
    }

    /// The API server's addresses, and the networks of ClusterIPs, as far as they are known without asking it: those
    /// that are `configured`, or the one around the address of the Service `kubernetes`.
    pub fn cluster_addresses(&self, configured: &[IpNet]) -> ClusterAddresses {
        let guess = kubernetes_service().map(ClusterAddresses::services_around);
        let guess = guess.filter(|_| configured.is_empty());
        ClusterAddresses {
            api_server: self.api_server.clone(),
            services: configured.to_vec(),
            assumed_services: guess.into_iter().collect(),
            ..ClusterAddresses::default()
        }
    }

    /// Switches shadow mode on or off: in it nothing is sent that changes anything but Events.
    pub fn set_shadow(&self, shadow: bool) {
        self.shadow
            .send_if_modified(|before| std::mem::replace(before, shadow) != shadow);
    }

    /// Whether the agent is in shadow mode.
    pub fn is_shadow(&self) -> bool {
        *self.shadow.borrow()
    }

    /// Ends when the agent is in shadow mode, or when it is not.
    pub async fn shadow_is(&self, shadow: bool) {
        // The sender lives as long as this does.
        let _ = self.shadow.subscribe().wait_for(|is| *is == shadow).await;
    }

    /// Whether the right to ask for evictions is known to be missing, and that was logged.
    pub fn set_lacks_evictions(&self, lacks: bool) {
        self.lacks_evictions.store(lacks, Ordering::Relaxed);
    }

    /// Whether the right to ask for evictions is known to be missing.
    pub fn lacks_evictions(&self) -> bool {
        self.lacks_evictions.load(Ordering::Relaxed)
    }

    /// The present client.
    pub fn client(&self) -> Client {
        locked(&self.client).clone()
    }

    /// Reads token and certificates again: the server has answered 401.
    pub async fn reload(&self) {
        if self.counters.unauthorized.add_first() {
            tracing::warn!("the API server does not take the token: it is read again");
        }
        let read_again = match config(self.kubeconfig.as_ref()).await {
            Ok(config) => connect(config, PLUGIN).await,
            Err(error) => Err(error),
        };
        match read_again {
            Ok(client) => self.replace(client),
            Err(error) => tracing::warn!(%error, "the token cannot be read again"),
        }
    }

    fn replace(&self, client: Client) {
        *locked(&self.client) = client;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Number of the present [`Self::client`]: it changes with every new client.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The server cannot be reached: its authority may be another one now, or this client's certificate. Reads them
    /// again, at most every half a minute; when they are others, requests are sent with them from now on.
    pub async fn renew(&self) {
        {
            let mut known = locked(&self.certificates);
            let now = Instant::now();
            if known.looked.is_some_and(|at| now - at < RENEWAL) {
                return;
            }
            known.looked = Some(now);
        }
        // A file that is missing for a moment is read the next time.
        let Ok(config) = config(self.kubeconfig.as_ref()).await else {
            return;
        };
        let found = Certificates::of(&config);
        if locked(&self.certificates).in_use == found {
            return;
        }
        match connect(config, PLUGIN).await {
            Ok(client) => self.replace(client),
            Err(error) => {
                tracing::warn!(%error, "the certificates have changed and cannot be used");
                return;
            }
        }
        locked(&self.certificates).in_use = found;
        tracing::info!("the certificates of the API server, or of this client, are new");
    }

    /// Sends a request and reads the answer. A 401 reads the token again and asks once more.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn call(&self, request: &ApiRequest<'_>) -> Result<Value, ApiError> {
        let answer = self.bytes(request).await?;
        Ok(serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// Sends a request like [`Self::call`] where the answer tells no more than that it was carried out: it may be an object
    /// of a size that a tenant chooses.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub async fn send(&self, request: &ApiRequest<'_>) -> Result<(), ApiError> {
        self.bytes(request).await.map(drop)
    }

    /// As [`Self::call`], for an answer that is too large to be kept as a whole.
    ///
    /// # Errors
    /// See [`ApiError`]; an answer of another form is none.
    pub async fn read<T: DeserializeOwned>(&self, request: &ApiRequest<'_>) -> Result<T, ApiError> {
        let answer = self.bytes(request).await?;
        serde_json::from_slice(&answer).map_err(|e| ApiError::Unanswered(e.to_string()))
    }

    async fn bytes(&self, request: &ApiRequest<'_>) -> Result<Bytes, ApiError> {
        if self.is_shadow() && !request.is_harmless() {
            let (method, path) = (&request.method, &request.path);
            let reason = format!("{method} {path} is not sent in shadow mode");
            return Err(ApiError::Unanswered(reason));
        }
        let mut answer = self.once(request).await;
        if matches!(&answer, Err(e) if e.code() == 401) {
            self.reload().await;
            answer = self.once(request).await;
        }
        match &answer {
            Err(e) if e.is_forbidden() && request.may_be_forbidden => {}
            Err(e) if e.is_forbidden() => {
                self.counters.forbidden.add();
                // Watches count there too, and tell by themselves.
                if !self.is_forbidden_logged.swap(true, Ordering::Relaxed) {
                    tracing::error!(path = request.path, error = %e, "the API server forbids the request");
                }
            }
            Err(e) if e.is_retryable() => self.counters.unanswered.add(),
            _ => {}
        }
        answer
    }

    async fn once(&self, request: &ApiRequest<'_>) -> Result<Bytes, ApiError> {
        self.counters.requests.add();
        let is_usual_write = request.method != Method::GET && request.deadline == DEADLINE;
        let unanswered = || locked(&self.unanswered_write);
        let are_slow = || unanswered().is_some_and(|at| at.elapsed() < SLOW_WRITES);
        let deadline = if is_usual_write && are_slow() {
            ADMISSION_DEADLINE
        } else {
            request.deadline
        };
        let answer = tokio::time::timeout(deadline, exchange(self.client(), request)).await;
        answer.unwrap_or_else(|_| {
            if is_usual_write {
                *unanswered() = (deadline == DEADLINE).then(Instant::now);
            }
            let reason = format!("no answer within {deadline:?}");
            Err(ApiError::Unanswered(reason))
        })
    }
}

async fn exchange(client: Client, request: &ApiRequest<'_>) -> Result<Bytes, ApiError> {
    let lost = |e: &dyn std::fmt::Display| ApiError::Unanswered(e.to_string());
    let body = if request.body.is_null() {
        Bytes::new()
    } else {
        request.body.to_string().into()
    };
    let request = Request::builder()
        .method(request.method.clone())
        .uri(&request.path)
        .header(http::header::CONTENT_TYPE, request.content_type)
        .header(http::header::ACCEPT, request.accept)
        .body(Body::from(body))
        .map_err(|e| lost(&e))?;
    let response = client.send(request).await.map_err(|e| lost(&e))?;
    let code = response.status();
    let body = response.into_body().collect_bytes().await;
    let body = body.map_err(|e| lost(&e))?;
    if code.is_success() {
        return Ok(body);
    }
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let causes = value["details"]["causes"].as_array();
    let causes = causes.map(Vec::as_slice).unwrap_or_default();
    Err(ApiError::Refused {
        code: code.as_u16(),
        reason: text("reason"),
        message: text("message"),
        causes: causes
            .iter()
            .filter_map(|c| c["reason"].as_str().map(str::to_owned))
            .collect(),
    })
}

/// Tests the way that [`ApiClient::open`] opens: no server is asked, and no credential plugin runs.
///
/// # Errors
/// As [`ApiClient::open`].
pub fn test_access(kubeconfig: Option<&PathBuf>) -> Result<(), AccessError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| AccessError::Client(error.to_string()))?;
    runtime.block_on(async {
        let config = config(kubeconfig).await?;
        let config = match config.auth_info.exec {
            Some(_) => without_plugin(config),
            None => config,
        };
        client(config).map(drop)
    })
}

async fn config(kubeconfig: Option<&PathBuf>) -> Result<Config, AccessError> {
    match kubeconfig {
        Some(path) => from_file(path).await,
        None => Config::incluster().map_err(|e| AccessError::InCluster(e.to_string())),
    }
}

fn kubernetes_service() -> Option<IpAddr> {
    env::var(SERVICE_HOST).ok()?.parse().ok()
}

/// The addresses of the API server: of the URL, and of the Service.
async fn addresses_of(url: &http::Uri) -> Vec<IpAddr> {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let mut addresses: Vec<IpAddr> = kubernetes_service().into_iter().collect();
    let looked_up = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((host, 0))).await;
    match looked_up.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
        Ok(found) => addresses.extend(found.map(|a| a.ip().to_canonical())),
        Err(error) => {
            tracing::warn!(host, %error, "the API server's address is not known: gates are not kept from it");
        }
    }
    addresses
}

/// Makes the client of a configuration. A credential plugin is run for it, twice, which may take its time or hang: so one
/// client is made at a time, on a thread of its own.
async fn connect(config: Config, patience: Duration) -> Result<Client, AccessError> {
    static ONE: Semaphore = Semaphore::const_new(1);
    if config.auth_info.exec.is_none() {
        return client(config);
    }
    let made = async {
        // It is never closed.
        let turn = ONE.acquire().await;
        let run = tokio::task::spawn_blocking(|| {
            let _turn = turn;
            client(config)
        });
        run.await.map_err(|e| AccessError::Client(e.to_string()))?
    };
    let late = |_| AccessError::Client("the credential plugin has not ended".to_owned());
    tokio::time::timeout(patience, made).await.map_err(late)?
}

/// The same configuration with a token that no server takes. Its 401 has the credentials read again; without a token the
/// requests would be anonymous, and forbidden for good.
fn without_plugin(mut config: Config) -> Config {
    config.auth_info.exec = None;
    config.auth_info.token = Some("none".to_owned().into());
    config
}

fn client(mut config: Config) -> Result<Client, AccessError> {
    config.read_timeout = Some(READ_TIMEOUT);
    // A 429 of the Eviction API means the next candidate, not a pause: the caller decides what is asked again.
    config.default_retry = false;
    if config.cluster_url.scheme() == Some(&Scheme::HTTP) {
        // No certificate is looked at: that a machine has none to compare with is no reason to refuse.
        config.root_cert.get_or_insert_default();
    }
    service(config).map_err(|e| AccessError::Client(e.to_string()))
}

/// As kube's own, with TCP keepalive: a server that is gone without a word would be noticed at the read timeout only,
/// in which neither policies nor a pause arrive.
fn service(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // It has the words for what is not supported.
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    let tls = config.rustls_https_connector_with_connector(tcp)?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let layers = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(tower::BoxError::from);
    Ok(Client::new(
        layers.service(client),
        config.default_namespace,
    ))
}

async fn from_file(path: &PathBuf) -> Result<Config, AccessError> {
    let wrong = |reason: String| AccessError::Kubeconfig {
        path: path.clone(),
        // One line, whatever a parser says.
        reason: reason.split_whitespace().collect::<Vec<_>>().join(" "),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|e| wrong(e.to_string()))?;
    let config = load(kubeconfig, &KubeConfigOptions::default()).await;
    config.map_err(|e| wrong(e.to_string()))
}

/// The configuration of a kubeconfig. A proxy of the environment, which kube takes whatever `NO_PROXY` says, is not used.
pub(crate) async fn load(
    kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<Config, KubeconfigError> {
    let clusters = kubeconfig.clusters.iter();
    let named =
        clusters.filter_map(|named| named.cluster.as_ref()?.proxy_url.as_ref()?.parse().ok());
    let named: Vec<http::Uri> = named.collect();
    let mut config = Config::from_custom_kubeconfig(kubeconfig, options).await?;
    config.proxy_url = config.proxy_url.filter(|used| named.contains(used));
    Ok(config)
}

impl ObjectReader for ApiClient {
    fn get(&self, path: String) -> BoxFuture<'_, Result<Answer, String>> {
        Box::pin(async move {
            match self.bytes(&ApiRequest::get(path)).await {
                Ok(bytes) => {
                    let body = parse_answer(&bytes)?;
                    Ok(Answer { status: 200, body })
                }
                // An object that is not there is an answer too, and a gate's check may say so.
                Err(error) if error.code() == 404 => Ok(Answer {
                    status: 404,
                    body: Value::Null,
                }),
                Err(error) => Err(error.to_string()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The identity provider may be away when the node starts.
    #[tokio::test]
    async fn a_credential_plugin_that_fails_or_hangs_keeps_no_agent_from_starting() {
        for (command, arguments) in [("false", "[]"), ("true", "[]"), ("sleep", "['10']")] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let text = format!(
                "clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:9'}}}}]\n\
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\ncurrent-context: c\n\
                 users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, \
                 interactiveMode: Never, command: '{command}', args: {arguments}}}}}}}]\n"
            );
            std::fs::write(file.path(), text).unwrap();
            let begun = Instant::now();
            let opened = ApiClient::open(Some(file.path().to_owned())).await;
            assert!(opened.is_ok(), "{command}");
            assert!(begun.elapsed() < 2 * PLUGIN_AT_START, "{command}");
        }
    }

    /// The words of k8s.io/apiserver, by what refuses.
    #[test]
    fn a_missing_right_is_what_the_authorizer_refuses() {
        let refused = |code, message: &str| ApiError::Refused {
            code,
            reason: "Forbidden".to_owned(),
            message: message.to_owned(),
            causes: Vec::new(),
        };
        let right = "pods \"a\" is forbidden: User \"system:serviceaccount:evictd:evictd\" cannot create resource \
            \"pods/eviction\" in API group \"\" in the namespace \"b\"";
        assert!(refused(403, right).is_missing_right());
        assert!(!refused(500, right).is_missing_right());
        let webhook = format!("admission webhook \"c.example\" denied the request: {right}");
        for of_one_pod in [
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'c' with binding 'c' denied request: User \"d\" cannot \
            do that",
            "admission webhook \"c.example\" denied the request: no",
            "pods \"a\" is forbidden: node \"n1\" can only delete pods with spec.nodeName set to itself",
            &webhook,
        ] {
            let error = refused(403, of_one_pod);
            assert!(error.is_forbidden() && !error.is_missing_right(), "{error}");
        }
    }
}

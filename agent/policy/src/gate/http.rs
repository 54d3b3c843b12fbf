//! Asks an HTTP server, with limits on time, size and address. A redirect counts as the answer and is not followed.

use evictd_config::{ConfigError, decode::ObjectDecoder};
use http::{Request, StatusCode, header, uri::Authority};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    super::expression::{EvaluationError, Expression, Name},
    expression, parse_answer,
};
use address::{Filter, bad_host, connect, endpoint};

pub use address::ClusterAddresses;
pub use hosts::Hosts;
pub use tls::{Secrets, Trust};

mod address;
mod hosts;
mod tls;

/// Default of `maxBytes`.
const DEFAULT_BYTES: u64 = 64 << 10;
/// Largest `maxBytes` that a policy may set.
const MAX_BYTES: u64 = 1 << 20;
/// Longest head of an answer, in bytes.
const HEAD_BYTES: usize = 16 << 10;

type Response = http::Response<hyper::body::Incoming>;

/// The task that drives a connection. It is aborted when the caller has read the answer or stops waiting.
struct Driver(tokio::task::JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Settings by which a gate asks an HTTP server.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpProbe {
    /// `scheme`: `http` by default.
    pub scheme: Scheme,
    /// `host`: an expression; the pod's IP by default.
    pub host: Option<Expression>,
    /// `hosts`: the allowed values of `host` and `serverName`, and addresses that may be asked although they are no
    /// pod's.
    pub hosts: Option<Hosts>,
    /// `clusterIPs`: whether `host` may be a Service.
    pub cluster_ips: bool,
    /// `port`.
    pub port: u16,
    /// `path`, with the query.
    pub path: String,
    /// `token`: the file in `gateSecrets` that holds a bearer token.
    pub token: Option<String>,
    /// `allowInsecure`: whether the token goes to a server that has not proved its identity.
    pub allow_insecure: bool,
    /// `ca` and `insecureSkipVerify`: which certificates of the server are accepted.
    pub trust: Option<Trust>,
    /// `serverName`: an expression for the name in the certificate; the host by default.
    pub server_name: Option<Expression>,
    /// `maxBytes`: a longer answer is an error.
    pub max_bytes: usize,
}

/// The server to ask about one pod: the results of the probe's expressions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The result of `host`, or the pod's IP.
    pub host: String,
    /// The result of `serverName`.
    pub server_name: Option<String>,
    /// The pod's namespace.
    pub namespace: String,
}

/// `http` or `https`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// HTTP in clear text.
    #[default]
    Http,
    /// Over TLS.
    Https,
}

/// The answer to a gate's question.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body: JSON, or a string if it is not JSON.
    pub body: serde_json::Value,
}

/// Why there is no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The host has no address, or one that gates may not ask.
    #[error("{host}: {reason}")]
    Address {
        /// The host, as the expression gave it.
        host: String,
        /// Description of what is wrong with the host.
        reason: String,
    },
    /// The token or the certificates cannot be used.
    #[error("{0}")]
    Secret(String),
    /// The connection or the HTTP exchange failed.
    #[error("{0}")]
    Exchange(String),
    /// The answer is longer than `maxBytes`.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// The answer has too many values, or is nested too deep.
    #[error("{0}")]
    TooComplex(&'static str),
    /// No answer within `timeout`.
    #[error("no answer within {0:?}")]
    TimedOut(std::time::Duration),
}

impl HttpProbe {
    pub(super) fn read(mut fields: ObjectDecoder, names: &[Name<'_>]) -> Result<Self, ConfigError> {
        let scheme = fields.choice(
            "scheme",
            &[("http", Scheme::Http), ("https", Scheme::Https)],
        )?;
        let scheme = scheme.unwrap_or_default();
        // A removed field: older policies may still have it with the value 0.
        let path_of_redirects = fields.path_of("redirects");
        if let Some(redirects) = fields.optional("redirects").filter(|n| *n != 0) {
            let reason =
                "must be left out: no redirect is followed; let host name the server that answers";
            return Err(ConfigError::value(path_of_redirects, &redirects, reason));
        }
        let probe = Self {
            scheme,
            host: expression(&mut fields, "host", names)?,
            hosts: Hosts::take(&mut fields)?,
            cluster_ips: fields.boolean("clusterIPs")?.unwrap_or(false),
            port: port(&mut fields)?,
            path: path(&mut fields)?,
            token: tls::secret_name(&mut fields, "token")?,
            allow_insecure: fields.boolean("allowInsecure")?.unwrap_or(false),
            trust: Trust::take(&mut fields, scheme)?,
            server_name: expression(&mut fields, "serverName", names)?,
            // At most 2^20, which fits everywhere.
            max_bytes: number(&mut fields, "maxBytes", MAX_BYTES)?.unwrap_or(DEFAULT_BYTES)
                as usize,
        };
        probe.check(&fields)?;
        fields.deny_unknown_fields()?;
        Ok(probe)
    }

    fn check(&self, fields: &ObjectDecoder) -> Result<(), ConfigError> {
        let wrong = |field: &str, value: serde_json::Value, reason: &str| {
            Err(ConfigError::value(fields.path_of(field), &value, reason))
        };
        let is_authentic = matches!(self.trust, Some(Trust::Authorities(_)));
        match &self.token {
            Some(token) if !is_authentic && !self.allow_insecure => {
                let reason = "is sent only to a server that proves who it is: set scheme: https and ca, or \
                    allowInsecure: true to send it to any server that answers";
                return wrong("token", token.as_str().into(), reason);
            }
            Some(_) if is_authentic && self.allow_insecure => {
                let reason = "contradicts ca: the server proves who it is";
                return wrong("allowInsecure", true.into(), reason);
            }
            None if self.allow_insecure => {
                return wrong("allowInsecure", true.into(), "means nothing without token");
            }
            _ => {}
        }
        if self.server_name.is_some() && !is_authentic {
            let reason = "means nothing without scheme: https and ca";
            return wrong("serverName", true.into(), reason);
        }
        if self.hosts.is_none() && (self.host.is_some() || self.server_name.is_some()) {
            let reason = "is missing: host and serverName come from what pods and servers say; name what they may be, \
                such as '*.$(namespace).svc'";
            return wrong("hosts", serde_json::Value::Null, reason);
        }
        if self.cluster_ips && self.host.is_none() {
            let reason = "means nothing without host: a pod's own address is no ClusterIP";
            return wrong("clusterIPs", true.into(), reason);
        }
        Ok(())
    }

    /// The server to ask about a pod; `variables` are the variables of the expressions, `pod_ip` the host without
    /// `host`.
    ///
    /// # Errors
    /// An expression has no result, or a result that is not a text.
    pub fn target(
        &self,
        variables: &[(&str, cel::Value)],
        pod_ip: &str,
        namespace: &str,
    ) -> Result<Target, EvaluationError> {
        let text = |expression: &Option<Expression>| {
            let text = expression.as_ref().map(|e| e.to_text(variables));
            text.transpose()
        };
        Ok(Target {
            host: text(&self.host)?.unwrap_or_else(|| pod_ip.to_owned()),
            server_name: text(&self.server_name)?,
            namespace: namespace.to_owned(),
        })
    }

    /// Asks a server and reads the answer. The server decides how long that takes: the caller needs a timeout.
    ///
    /// # Errors
    /// See [`ProbeError`].
    pub async fn ask(
        &self,
        target: &Target,
        cluster: &ClusterAddresses,
        secrets: &Secrets,
    ) -> Result<Answer, ProbeError> {
        let host = endpoint(&target.host, self.port)?;
        let names = [
            self.host.as_ref().map(|_| host),
            target.server_name.as_deref(),
        ];
        for name in names.into_iter().flatten() {
            let hosts = self.hosts.as_ref();
            if !hosts.is_some_and(|hosts| hosts.allow(name, &target.namespace)) {
                return Err(bad_host(name, "is not among hosts"));
            }
        }
        let token = match &self.token {
            Some(name) => Some(secrets.token(name)?),
            None => None,
        };
        let authority = if host.contains(':') {
            format!("[{host}]:{}", self.port)
        } else {
            format!("{host}:{}", self.port)
        };
        let authority: Authority = authority
            .parse()
            .map_err(|_| bad_host(host, "cannot be part of a URL"))?;
        let filter = Filter {
            cluster,
            hosts: self.hosts.as_ref(),
            cluster_ips: self.cluster_ips,
            is_pods_own: self.host.is_none(),
        };
        let stream = connect(host, self.port, filter).await?;
        let request = request(&authority, &self.path, token.as_deref())?;
        let (response, _driver) = match self.scheme {
            Scheme::Http => send(stream, request).await?,
            Scheme::Https => {
                let name = target.server_name.as_deref().unwrap_or(host);
                let stream = secrets.over_tls(self.trust.as_ref(), name, stream).await?;
                send(stream, request).await?
            }
        };
        self.read_answer(response).await
    }

    async fn read_answer(&self, response: Response) -> Result<Answer, ProbeError> {
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), self.max_bytes)
            .collect()
            .await;
        let body = body.map_err(|e| {
            if e.is::<http_body_util::LengthLimitError>() {
                ProbeError::TooLong(self.max_bytes)
            } else {
                ProbeError::Exchange(e.to_string())
            }
        })?;
        let bytes = body.to_bytes();
        let body = parse_answer(&bytes).map_err(ProbeError::TooComplex)?;
        Ok(Answer { status, body })
    }
}

impl Answer {
    /// Whether the status is a 2xx: a yes for a gate without `check`.
    pub fn is_success(&self) -> bool {
        StatusCode::from_u16(self.status).is_ok_and(|s| s.is_success())
    }
}

fn request(
    authority: &Authority,
    path: &str,
    token: Option<&str>,
) -> Result<Request<Empty<Bytes>>, ProbeError> {
    let mut request = Request::get(path)
        .header(header::HOST, authority.as_str())
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, "evictd")
        .header(header::CONNECTION, "close");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::new());
    request.map_err(|e| ProbeError::Exchange(e.to_string()))
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<(Response, Driver), ProbeError> {
    let failed = |e: hyper::Error| ProbeError::Exchange(e.to_string());
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(failed)?;
    // The reader of the answer sees the same error.
    let driver = Driver(tokio::spawn(async move { drop(connection.await) }));
    let response = sender.send_request(request).await.map_err(failed)?;
    Ok((response, driver))
}

fn port(fields: &mut ObjectDecoder) -> Result<u16, ConfigError> {
    let path = fields.path_of("port");
    let value = fields.optional("port").unwrap_or_default();
    let port = value
        .as_u64()
        .and_then(|n| u16::try_from(n).ok())
        .filter(|n| *n > 0);
    port.ok_or_else(|| {
        ConfigError::value(path, &value, "must be a port: a number between 1 and 65535")
    })
}

fn path(fields: &mut ObjectDecoder) -> Result<String, ConfigError> {
    let text = fields.text("path")?.unwrap_or_else(|| "/".to_owned());
    let parsed: Result<http::uri::PathAndQuery, _> = text.parse();
    match parsed {
        Ok(parsed) if text.starts_with('/') && parsed.as_str() == text => Ok(text),
        _ => Err(ConfigError::text(
            fields.path_of("path"),
            &text,
            "must be a path that starts with /",
        )),
    }
}

fn number(fields: &mut ObjectDecoder, name: &str, most: u64) -> Result<Option<u64>, ConfigError> {
    let path = fields.path_of(name);
    let Some(value) = fields.optional(name) else {
        return Ok(None);
    };
    let number = value.as_u64().filter(|n| *n <= most);
    let reason = format!("must be a whole number up to {most}");
    number
        .map(Some)
        .ok_or_else(|| ConfigError::value(path, &value, reason))
}

//! Asks an HTTP server, within limits: time, size, redirects, and where it may be sent.

use evictd_config::{ConfigError, decode::ObjectDecoder};
use http::{Request, StatusCode, Uri, header, uri::Authority};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    super::expression::{Expression, Name},
    expression,
};
use address::{bad_host, connect, endpoint, redirected};

pub use tls::{Secrets, Trust};

mod address;
mod tls;

/// Bytes of an answer that are read by default.
const DEFAULT_BYTES: u64 = 64 << 10;
/// Nor may a policy let it be more.
const MOST_BYTES: u64 = 1 << 20;
/// Redirects that a policy may let a gate follow.
const MOST_REDIRECTS: u64 = 3;
/// What the head of an answer may take, in bytes.
const HEAD_BYTES: usize = 16 << 10;

type Response = http::Response<hyper::body::Incoming>;

/// Drives a connection for as long as its answer is read, and ends with the caller that waits for it.
struct Driver(tokio::task::JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How to ask.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpProbe {
    /// `scheme`: `http` by default.
    pub scheme: Scheme,
    /// `host`: an expression; the pod's IP by default.
    pub host: Option<Expression>,
    /// `port`.
    pub port: u16,
    /// `path`, with the query.
    pub path: String,
    /// `token`: the file in `gateSecrets` that holds a bearer token.
    pub token: Option<String>,
    /// `ca` and `insecureSkipVerify`: whose word counts for the server's certificate.
    pub trust: Option<Trust>,
    /// `maxBytes`: a longer answer is none.
    pub max_bytes: usize,
    /// `redirects`: so many are followed; none by default.
    pub redirects: u8,
}

/// `http` or `https`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheme {
    /// In clear text.
    #[default]
    Http,
    /// Over TLS.
    Https,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body: JSON, or a text that is none.
    pub body: serde_json::Value,
}

/// Why nothing usable came back.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The host has no address, or one that is not asked.
    #[error("{host}: {reason}")]
    Address {
        /// As the expression gave it.
        host: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Token or certificates.
    #[error("{0}")]
    Secret(String),
    /// The connection, or what came over it.
    #[error("{0}")]
    Exchange(String),
    /// More than `maxBytes`.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// More than `redirects`.
    #[error("it redirects more than {0} times")]
    Redirects(u8),
    /// Nothing within the time.
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
        let probe = Self {
            scheme,
            host: expression(&mut fields, "host", names)?,
            port: port(&mut fields)?,
            path: path(&mut fields)?,
            token: tls::secret_name(&mut fields, "token")?,
            trust: Trust::take(&mut fields, scheme)?,
            // At most 2^20, which fits everywhere.
            max_bytes: number(&mut fields, "maxBytes", MOST_BYTES)?.unwrap_or(DEFAULT_BYTES)
                as usize,
            redirects: number(&mut fields, "redirects", MOST_REDIRECTS)?.unwrap_or(0) as u8,
        };
        fields.deny_unknown_fields()?;
        Ok(probe)
    }

    /// Asks a host and reads the answer. It takes as long as the peer likes: the caller sets an end to it.
    ///
    /// # Errors
    /// See [`ProbeError`].
    pub async fn ask(&self, host: &str, secrets: &Secrets) -> Result<Answer, ProbeError> {
        let token = match &self.token {
            Some(name) => Some(secrets.token(name)?),
            None => None,
        };
        let (host, port) = endpoint(host, self.port)?;
        let authority = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        let first: Uri = format!("{scheme}://{authority}{}", self.path)
            .parse()
            .map_err(|_| bad_host(host, "cannot be part of a URL"))?;
        if first.authority().map(Authority::as_str) != Some(&authority) {
            return Err(bad_host(host, "is not the name of a host"));
        }
        let mut target = first.clone();
        for _ in 0..=self.redirects {
            // A token is for the host that it was meant for, not for one that this host redirects to.
            let token = token
                .as_deref()
                .filter(|_| target.authority() == first.authority());
            let (response, _driver) = self.exchange(&target, token, secrets).await?;
            let location = response
                .headers()
                .get(header::LOCATION)
                .filter(|_| self.redirects > 0 && response.status().is_redirection());
            match location {
                Some(location) => target = redirected(&target, location, self.scheme)?,
                None => return self.read_answer(response).await,
            }
        }
        Err(ProbeError::Redirects(self.redirects))
    }

    async fn exchange(
        &self,
        target: &Uri,
        token: Option<&str>,
        secrets: &Secrets,
    ) -> Result<(Response, Driver), ProbeError> {
        let host = target.host().unwrap_or_default().trim_matches(['[', ']']);
        let port = target.port_u16().unwrap_or(self.port);
        let stream = connect(host, port).await?;
        match self.scheme {
            Scheme::Http => send(stream, target, token).await,
            Scheme::Https => {
                let stream = secrets.over_tls(self.trust.as_ref(), host, stream).await?;
                send(stream, target, token).await
            }
        }
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
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into());
        Ok(Answer { status, body })
    }
}

impl Answer {
    /// What a gate without a check goes by.
    pub fn is_success(&self) -> bool {
        StatusCode::from_u16(self.status).is_ok_and(|s| s.is_success())
    }
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    target: &Uri,
    token: Option<&str>,
) -> Result<(Response, Driver), ProbeError> {
    let failed = |e: &dyn std::fmt::Display| ProbeError::Exchange(e.to_string());
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|e| failed(&e))?;
    let path = target.path_and_query().map_or("/", |p| p.as_str());
    let authority = target.authority().map_or("", Authority::as_str);
    let mut request = Request::get(path)
        .header(header::HOST, authority)
        .header(header::ACCEPT, "application/json")
        .header(header::USER_AGENT, "evictd")
        .header(header::CONNECTION, "close");
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request
        .body(Empty::<Bytes>::new())
        .map_err(|e| failed(&e))?;
    // What goes wrong here goes wrong for the reader too.
    let driver = Driver(tokio::spawn(async move { drop(connection.await) }));
    let response = sender.send_request(request).await.map_err(|e| failed(&e))?;
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

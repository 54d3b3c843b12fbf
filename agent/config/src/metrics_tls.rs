//! `metricsTls`: metrics over TLS, for scrapers with a right to read them.

use std::path::{Path, PathBuf};

use serde_json::json;

use super::ConfigError;
use crate::decode::ObjectDecoder;

/// Metrics over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsTls {
    /// `certificateFile` and `privateKeyFile`; without them the agent signs a certificate itself.
    pub files: Option<CertificateFiles>,
    /// `authorization`: a scraper needs a token that the API server knows, with the right to `get` the path `/metrics`.
    pub authorization: bool,
}

/// A certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// `certificateFile`: the chain, the server's own first.
    pub certificate: PathBuf,
    /// `privateKeyFile`.
    pub private_key: PathBuf,
}

/// Takes the field `metricsTls`. `is_served`: metrics have an address; `has_cluster`: there is an API server that knows
/// tokens.
pub(super) fn take(
    fields: &mut ObjectDecoder,
    is_served: bool,
    has_cluster: bool,
) -> Result<Option<MetricsTls>, ConfigError> {
    let Some(mut tls) = fields.object("metricsTls")? else {
        return Ok(None);
    };
    if !is_served {
        let reason = "needs metricsAddress: without it no port is open";
        return Err(ConfigError::value("metricsTls", &json!({}), reason));
    }
    let certificate = tls.absolute_path("certificateFile")?;
    let files = match (certificate, tls.absolute_path("privateKeyFile")?) {
        (Some(certificate), Some(private_key)) => Some(CertificateFiles {
            certificate,
            private_key,
        }),
        (None, None) => None,
        (Some(path), None) => return Err(alone(&tls, "certificateFile", &path, "privateKeyFile")),
        (None, Some(path)) => return Err(alone(&tls, "privateKeyFile", &path, "certificateFile")),
    };
    let authorization = tls.boolean("authorization")?.unwrap_or(has_cluster);
    if authorization && !has_cluster {
        let reason = "needs cluster: the API server says who may read the metrics";
        let path = tls.path_of("authorization");
        return Err(ConfigError::value(path, &json!(true), reason));
    }
    tls.deny_unknown_fields()?;
    Ok(Some(MetricsTls {
        files,
        authorization,
    }))
}

fn alone(tls: &ObjectDecoder, field: &str, path: &Path, other: &str) -> ConfigError {
    let path = path.display().to_string();
    ConfigError::text(
        tls.path_of(field),
        &path,
        format!("needs {other} beside it"),
    )
}

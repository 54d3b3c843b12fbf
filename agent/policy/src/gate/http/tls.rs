//! Tokens and certificates: files in one directory that the agent's configuration names, so that a policy cannot point
//! at any other file of the node.

use std::{fs, path::PathBuf, sync::Arc};

use evictd_config::{ConfigError, decode::ObjectDecoder};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::{ProbeError, Scheme};

/// Certificates of a server that are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// `ca`: those that the authorities in this file of `gateSecrets` have signed.
    Authorities(String),
    /// `insecureSkipVerify`: every certificate.
    AnyCertificate,
}

impl Trust {
    pub(super) fn take(
        fields: &mut ObjectDecoder,
        scheme: Scheme,
    ) -> Result<Option<Self>, ConfigError> {
        let ca = secret_name(fields, "ca")?;
        let skip = fields.boolean("insecureSkipVerify")?.unwrap_or(false);
        let path = fields.path_of("ca");
        match (scheme, ca, skip) {
            (Scheme::Http, None, false) => Ok(None),
            (Scheme::Https, Some(ca), false) => Ok(Some(Self::Authorities(ca))),
            (Scheme::Https, None, true) => Ok(Some(Self::AnyCertificate)),
            (Scheme::Https, None, false) => {
                let reason = "is missing: https needs it, or insecureSkipVerify";
                Err(ConfigError::value(path, &serde_json::Value::Null, reason))
            }
            (Scheme::Http, ca, _) => Err(ConfigError::value(
                path,
                &ca.into(),
                "means nothing without scheme: https, nor does insecureSkipVerify",
            )),
            (Scheme::Https, Some(ca), true) => Err(ConfigError::text(
                path,
                &ca,
                "cannot be used together with insecureSkipVerify",
            )),
        }
    }
}

/// Takes a field that is the name of a file in `gateSecrets`.
pub(super) fn secret_name(
    fields: &mut ObjectDecoder,
    name: &str,
) -> Result<Option<String>, ConfigError> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    fields.text_as(name, |text| {
        let is_name = !text.is_empty() && !text.starts_with('.') && text.chars().all(good);
        let wrong = "must be the name of a file in gateSecrets";
        is_name.then(|| text.to_owned()).ok_or(wrong)
    })
}

/// The directory with tokens and certificates. Each use reads the file again, because Kubernetes updates mounted
/// secrets in place.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    directory: Option<PathBuf>,
}

impl Secrets {
    /// Files of this directory; without one there are none.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }

    pub(super) fn token(&self, name: &str) -> Result<String, ProbeError> {
        let text = String::from_utf8(self.read(name)?);
        let text = text.map_err(|_| ProbeError::Secret(format!("{name}: is no text")))?;
        Ok(text.trim().to_owned())
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, ProbeError> {
        let Some(directory) = &self.directory else {
            return Err(ProbeError::Secret(format!(
                "{name}: gateSecrets is not set"
            )));
        };
        let path = directory.join(name);
        fs::read(&path).map_err(|e| ProbeError::Secret(format!("{}: {e}", path.display())))
    }

    pub(super) async fn over_tls(
        &self,
        trust: Option<&Trust>,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ProbeError> {
        let failed = |e: &dyn std::fmt::Display| ProbeError::Exchange(format!("TLS: {e}"));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(|e| failed(&e))?;
        let config = match trust {
            Some(Trust::AnyCertificate) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
                .with_no_client_auth(),
            Some(Trust::Authorities(name)) => {
                let mut roots = RootCertStore::empty();
                let pem = self.read(name)?;
                for certificate in CertificateDer::pem_slice_iter(&pem) {
                    let certificate =
                        certificate.map_err(|e| ProbeError::Secret(format!("{name}: {e}")))?;
                    roots
                        .add(certificate)
                        .map_err(|e| ProbeError::Secret(format!("{name}: {e}")))?;
                }
                builder.with_root_certificates(roots).with_no_client_auth()
            }
            None => {
                return Err(ProbeError::Secret(
                    "no certificate authority is trusted".to_owned(),
                ));
            }
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| failed(&e))?;
        let connector = TlsConnector::from(Arc::new(config));
        connector
            .connect(name, stream)
            .await
            .map_err(|e| failed(&e))
    }
}

/// Accepts every certificate, but still requires a handshake that is signed with its key.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

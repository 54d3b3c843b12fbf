//! A certificate authority of a test's own, and servers that speak TLS with its certificates.

use std::net::SocketAddr;

use axum::serve::Listener;
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned,
    crypto::CryptoProvider,
    pki_types::PrivatePkcs8KeyDer,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::prelude::*;

/// A client that does not finish its handshake by then does not keep others waiting.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Signs certificates; forgotten with the test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, which is not trusted yet.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let issuer = CertifiedIssuer::self_signed(params, key)?;
        Ok(Self { issuer })
    }

    /// Certificate of the authority, as PEM, which a client needs to trust it.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// A server with a certificate for these names or addresses.
    pub fn server(&self, names: &[&str]) -> Result<Arc<ServerConfig>> {
        self.serve(names, WebPkiClientVerifier::no_client_auth())
    }

    /// Builds the configuration of a server for clients with a certificate of this authority only.
    pub fn server_for_members(&self, names: &[&str]) -> Result<Arc<ServerConfig>> {
        let mut roots = RootCertStore::empty();
        let added = roots.add(self.issuer.der().clone());
        added?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
        self.serve(names, verifier.build()?)
    }

    /// Certificate and key of a client of this organization, both in PEM.
    pub fn member(&self, organization: &str) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, organization);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer);
        let certificate = certificate?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    /// Certificate and key of a server with these names or addresses, both in PEM.
    pub fn server_pem(&self, names: &[&str]) -> Result<(String, String)> {
        let (certificate, key) = self.sign(names)?;
        Ok((certificate.pem(), key.serialize_pem()))
    }

    fn sign(&self, names: &[&str]) -> Result<(Certificate, KeyPair)> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(names)
            .and_then(|params| params.signed_by(&key, &self.issuer))?;
        Ok((certificate, key))
    }

    /// A connection to a server that has to have a certificate of this authority.
    pub fn connect(
        &self,
        address: SocketAddr,
    ) -> Result<StreamOwned<ClientConnection, std::net::TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = address.ip().into();
        let connection = ClientConnection::new(Arc::new(config), name)?;
        let mut stream = StreamOwned::new(connection, std::net::TcpStream::connect(address)?);
        stream.conn.complete_io(&mut stream.sock)?;
        Ok(stream)
    }

    fn serve(
        &self,
        names: &[&str],
        clients: Arc<dyn ClientCertVerifier>,
    ) -> Result<Arc<ServerConfig>> {
        let (certificate, key) = self.sign(names)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
            )?;
        Ok(Arc::new(config))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

pub(crate) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
}

impl TlsListener {
    pub(crate) fn new(tcp: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self {
            tcp,
            acceptor: config.into(),
        }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = Listener::accept(&mut self.tcp).await;
            let handshake = self.acceptor.accept(stream);
            // A client that does not trust the certificate hangs up here.
            if let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, handshake).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.tcp.local_addr()
    }
}

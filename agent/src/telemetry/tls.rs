//! TLS for the metrics: the certificate, which is read again when its file changes, and a connection over it or without
//! it.

use std::{
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use evictd_config::CertificateFiles;
use nix::poll::PollFlags;
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
};

use super::error::ServeError;

const CERTIFICATE: &str = "metricsTls.certificateFile";
const KEY: &str = "metricsTls.privateKeyFile";
/// Interval at which the files are looked at, when connections come.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// TLS configuration of a server.
pub(super) struct Tls {
    config: Arc<ServerConfig>,
    /// Files of the certificate; without them it is the agent's own.
    files: Option<Followed>,
}

/// Files, and what is known of them.
struct Followed {
    files: CertificateFiles,
    modified: [Option<SystemTime>; 2],
    checked: Instant,
    /// Why they could not be used the last time; they are tried again.
    unusable: Option<String>,
}

impl Tls {
    /// Reads the files, or makes a certificate that the agent signs itself and keeps in memory, as components of
    /// Kubernetes do.
    ///
    /// # Errors
    /// A file that cannot be read, or holds no certificate or key that fit each other.
    pub fn open(files: Option<&CertificateFiles>) -> Result<Self, ServeError> {
        let Some(files) = files else {
            let config =
                self_signed().map_err(|e| ServeError::new("metricsTls", "self-signed", &e))?;
            return Ok(Self {
                config: Arc::new(config),
                files: None,
            });
        };
        // Before the files are read: what changes meanwhile is read again.
        let modified = modified(files);
        Ok(Self {
            config: Arc::new(from_files(files)?),
            files: Some(Followed {
                files: files.clone(),
                modified,
                checked: Instant::now(),
                unusable: None,
            }),
        })
    }

    /// A connection whose handshake begins.
    pub fn accept(&mut self, stream: TcpStream) -> Result<Transport, rustls::Error> {
        self.check_files();
        let connection = ServerConnection::new(Arc::clone(&self.config))?;
        Ok(Transport::Tls(Box::new(StreamOwned::new(
            connection, stream,
        ))))
    }

    /// Takes a certificate that was renewed. One that cannot be used leaves the one before in its place.
    fn check_files(&mut self) {
        let Some(followed) = &mut self.files else {
            return;
        };
        if followed.checked.elapsed() < CHECK_INTERVAL {
            return;
        }
        followed.checked = Instant::now();
        let modified = modified(&followed.files);
        let is_known = modified == std::mem::replace(&mut followed.modified, modified);
        if is_known && followed.unusable.is_none() {
            return;
        }
        match from_files(&followed.files) {
            Ok(config) => {
                self.config = Arc::new(config);
                followed.unusable = None;
            }
            // Without a free descriptor they cannot be read, and do not change afterwards.
            Err(error) => {
                let reason = error.to_string();
                if followed.unusable.as_ref() != Some(&reason) {
                    tracing::error!(%error, "the metrics keep the certificate that they have");
                }
                followed.unusable = Some(reason);
            }
        }
    }
}

/// Tests the certificate and the key in these files, as at the agent's start.
///
/// # Errors
/// As `Tls::open`.
pub fn test_files(files: &CertificateFiles) -> Result<(), ServeError> {
    from_files(files).map(drop)
}

/// Times at which certificate and key were changed last, as far as they are there.
fn modified(files: &CertificateFiles) -> [Option<SystemTime>; 2] {
    [&files.certificate, &files.private_key]
        .map(|path| fs::metadata(path).and_then(|file| file.modified()).ok())
}

fn from_files(files: &CertificateFiles) -> Result<ServerConfig, ServeError> {
    let at = |field, path: &PathBuf, e: &dyn std::fmt::Display| {
        ServeError::new(field, path.display(), &e.to_string())
    };
    let CertificateFiles {
        certificate,
        private_key,
    } = files;
    let chain = read_chain(certificate).map_err(|e| at(CERTIFICATE, certificate, &e))?;
    let key = PrivateKeyDer::from_pem_file(private_key).map_err(|e| at(KEY, private_key, &e))?;
    config(chain, key).map_err(|e| at(KEY, private_key, &e))
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|e| e.to_string())?;
    match chain.is_empty() {
        true => Err("has no certificate".to_owned()),
        false => Ok(chain),
    }
}

fn self_signed() -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
    let made = rcgen::generate_simple_self_signed(["evictd".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok(config(vec![made.cert.der().clone()], key.into())?)
}

fn config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
}

/// A connection that does not block.
pub(super) enum Transport {
    /// Without TLS.
    Plain(TcpStream),
    /// With it.
    Tls(Box<StreamOwned<ServerConnection, TcpStream>>),
}

impl Transport {
    /// Events that the handshake waits for beside the request.
    pub fn wants(&self) -> PollFlags {
        match self {
            Self::Tls(stream) if stream.conn.wants_write() => PollFlags::POLLOUT,
            _ => PollFlags::empty(),
        }
    }

    /// All is written: says so to the client. Whether there is more to send, later.
    pub fn finish(&mut self) -> bool {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => {
                stream.conn.send_close_notify();
                while stream.conn.wants_write() {
                    match stream.conn.write_tls(&mut stream.sock) {
                        Ok(n) if n > 0 => {}
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        _ => break,
                    }
                }
                &mut stream.sock
            }
        };
        // The client may be gone.
        let _ = socket.shutdown(Shutdown::Write);
        false
    }
}

impl Read for Transport {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Transport {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => stream.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}

impl AsFd for Transport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.sock.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_could_not_be_used_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let files = CertificateFiles {
            certificate: dir.path().join("tls.crt"),
            private_key: dir.path().join("tls.key"),
        };
        let write = |certificate: &str, key: &str| {
            let texts = [(&files.certificate, certificate), (&files.private_key, key)];
            for (path, text) in texts {
                fs::write(path, text).unwrap();
                let file = fs::File::options().write(true).open(path).unwrap();
                // What tells them apart is not their time.
                file.set_modified(
                    SystemTime::UNIX_EPOCH + Duration::from_secs(text.len().min(1) as u64),
                )
                .unwrap();
            }
        };
        let made = rcgen::generate_simple_self_signed(["evictd".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        write(&certificate, &key);
        let mut tls = Tls::open(Some(&files)).unwrap();
        let check = |tls: &mut Tls| {
            let before = Arc::clone(&tls.config);
            if let Some(followed) = &mut tls.files {
                followed.checked = Instant::now().checked_sub(CHECK_INTERVAL).unwrap();
            }
            tls.check_files();
            !Arc::ptr_eq(&before, &tls.config)
        };
        assert!(!check(&mut tls));
        write("", &key);
        assert!(!check(&mut tls), "it keeps the one that it has");
        write("x", &key);
        assert!(!check(&mut tls));
        write(&certificate, &key);
        assert!(check(&mut tls), "of the same time as the one before");
        assert!(!check(&mut tls));
    }
}

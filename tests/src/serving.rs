//! A scripted HTTP server's thread: started with a router, ended when it is dropped.

use std::{io, net::SocketAddr, sync::Arc, thread::JoinHandle};

use axum::Router;
use rustls::ServerConfig;
use tokio::sync::oneshot;

use crate::tls::TlsListener;

/// A server that answers until it is dropped.
pub struct Serving {
    address: SocketAddr,
    running: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Serving {
    /// Answers at an address, on a thread of this name; port 0 is a free one. With `tls` it speaks that.
    pub fn start(
        name: &str,
        address: SocketAddr,
        router: Router,
        tls: Option<Arc<ServerConfig>>,
    ) -> io::Result<Self> {
        let runtime = crate::current_thread()?;
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                let answer = async {
                    match tls {
                        Some(config) => {
                            axum::serve(TlsListener::new(listener, config), router).await
                        }
                        None => axum::serve(listener, router).await,
                    }
                };
                runtime.block_on(async {
                    tokio::select! {
                        _ = answer => {}
                        _ = stopped => {}
                    }
                });
                // Dropping the runtime here cuts every connection that is still open.
            })?;
        Ok(Self {
            address,
            running: Some((stop, thread)),
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.running.take() {
            // A server that has stopped already does not listen any more.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

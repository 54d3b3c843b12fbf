//! The thread of a scripted server, ended when it is dropped.

use std::{
    net::SocketAddr,
    thread::{Builder, JoinHandle},
};

use axum::Router;
use rustls::ServerConfig;
use tokio::{net::TcpListener, runtime::Runtime, sync::oneshot};

use crate::{prelude::*, tls::TlsListener};

/// A server that answers until it is dropped.
pub struct Serving(Option<(oneshot::Sender<()>, JoinHandle<()>)>);

impl Serving {
    /// Lets it serve on a thread of this name.
    pub fn start(
        name: &str,
        runtime: Runtime,
        serve: impl Future<Output = ()> + Send + 'static,
    ) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
            // Dropping the runtime here cuts every connection that is still open.
        };
        let thread = Builder::new().name(name.into()).spawn(run)?;
        Ok(Self(Some((stop, thread))))
    }

    /// Answers HTTP at an address, where port 0 is a free one; the address that it has. With `tls` it speaks that.
    pub fn http(
        name: &str,
        address: SocketAddr,
        router: Router,
        tls: Option<Arc<ServerConfig>>,
    ) -> Result<(SocketAddr, Self)> {
        let runtime = crate::current_thread()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let serve = async {
            // It goes on until it is dropped.
            let _ = match tls {
                Some(config) => axum::serve(TlsListener::new(listener, config), router).await,
                None => axum::serve(listener, router).await,
            };
        };
        Ok((address, Self::start(name, runtime, serve)?))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            // A server that has stopped already does not listen any more.
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

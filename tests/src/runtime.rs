//! A scripted container runtime: it speaks the CRI over a unix socket, remembers what it was asked, and fails where a test
//! wants it to.

use std::{collections::HashMap, convert::Infallible};

use evictd_cri::messages::{
    Container, ContainerRequest, ContainerStats, ContainerStatus, ContainerStatusResponse, Empty,
    Image, ImageFsInfoResponse, ListContainerStatsResponse, ListContainersResponse,
    ListImagesResponse, ListPodSandboxResponse, Mount, PodSandbox, PodSandboxRequest,
    RemoveImageRequest, StatusResponse,
};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Bytes, Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixListener;

use crate::{prelude::*, serving::Serving};

/// gRPC's `UNKNOWN`.
pub const UNKNOWN: u32 = 2;
/// gRPC's `UNIMPLEMENTED`.
pub const UNIMPLEMENTED: u32 = 12;
/// gRPC's `FAILED_PRECONDITION`.
pub const FAILED_PRECONDITION: u32 = 9;

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Refusal of the call with this gRPC code.
    Refused(u32),
    Hangs,
}

/// Action that is taken once, at a call.
type Event = Box<dyn FnOnce(&mut State) + Send>;

/// State of the runtime: what it has, what it was asked, and what is to go wrong.
#[derive(Default)]
pub struct State {
    pub containers: Vec<Container>,
    pub sandboxes: Vec<PodSandbox>,
    pub images: Vec<Image>,
    /// Mounts by container.
    pub mounts: HashMap<String, Vec<Mount>>,
    /// Usage of the containers.
    pub stats: Vec<ContainerStats>,
    /// Answer that says where the runtime keeps its files; without it the call is one that it does not know.
    pub disks: Option<ImageFsInfoResponse>,
    /// Details that `Status` tells beside the status.
    pub info: HashMap<String, String>,
    /// Every call that changes something: `RemoveImage sha256:1`.
    pub calls: Vec<String>,
    /// Number of times that the runtime was asked about a container.
    pub statuses: usize,
    /// Faults by call (`ListImages`) or by call and id (`RemoveImage sha256:1`).
    pub faults: HashMap<String, Fault>,
    /// Time that an answer takes, by call.
    pub delays: HashMap<String, Duration>,
    /// Actions that are taken after a call has been answered, by call.
    pub after: HashMap<String, Event>,
}

/// A running runtime; gone when dropped.
pub struct Runtime {
    state: Arc<Mutex<State>>,
    _running: Serving,
}

impl Runtime {
    pub fn start(socket: &Path, state: State) -> Result<Self> {
        let state = Arc::new(Mutex::new(state));
        let runtime = crate::current_thread()?;
        let listener = {
            let _in_it = runtime.enter();
            UnixListener::bind(socket)?
        };
        let serve = serve(listener, Arc::clone(&state));
        let _running = Serving::start("runtime", runtime, serve)?;
        Ok(Self { state, _running })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

async fn serve(listener: UnixListener, state: Arc<Mutex<State>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = Arc::clone(&state);
        let answer = service_fn(move |request| answer(request, Arc::clone(&state)));
        tokio::spawn(async move {
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // How a connection ends is the client's business.
            let _ = server.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    state: Arc<Mutex<State>>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let path = request.uri().path().to_owned();
    let call = path.rsplit('/').next().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await;
    let body = body.map(|b| b.to_bytes()).unwrap_or_default();
    // One flag, four bytes of length, the message.
    let message = body.get(5..).unwrap_or_default();
    let delay = state.lock().delays.get(&call).copied();
    if let Some(delay) = delay {
        tokio::time::sleep(delay).await;
    }
    let (fault, answered) = {
        let mut state = state.lock();
        let id = id_of(&call, message);
        let fault = [&call, &format!("{call} {id}")]
            .into_iter()
            .find_map(|key| state.faults.get(key).copied());
        match (&*call, id.is_empty()) {
            ("ContainerStatus", _) => state.statuses += 1,
            (_, true) => {}
            (_, false) => state.calls.push(format!("{call} {id}")),
        }
        let answered = match fault {
            None => state.act(&call, &id),
            Some(_) => None,
        };
        if let Some(event) = state.after.remove(&call) {
            event(&mut state);
        }
        (fault, answered)
    };
    match (fault, answered) {
        (Some(Fault::Hangs), _) => std::future::pending().await,
        (Some(Fault::Refused(code)), _) => Ok(response(None, code)),
        (None, None) => Ok(response(None, UNIMPLEMENTED)),
        (None, Some(message)) => Ok(response(Some(message), 0)),
    }
}

fn id_of(call: &str, message: &[u8]) -> String {
    match call {
        "RemoveContainer" | "ContainerStatus" => {
            ContainerRequest::decode(message).map(|r| r.container_id)
        }
        "StopPodSandbox" | "RemovePodSandbox" => {
            PodSandboxRequest::decode(message).map(|r| r.pod_sandbox_id)
        }
        "RemoveImage" => {
            RemoveImageRequest::decode(message).map(|r| r.image.unwrap_or_default().image)
        }
        _ => Ok(String::new()),
    }
    .unwrap_or_default()
}

impl State {
    /// Has a call (`ListImages`), or one with an id (`RemoveImage sha256:1`), go wrong from now on.
    pub fn fails(&mut self, call: &str, fault: Fault) {
        self.faults.insert(call.to_owned(), fault);
    }

    /// Has something happen after this call, once.
    pub fn after(&mut self, call: &str, event: impl FnOnce(&mut Self) + Send + 'static) {
        self.after.insert(call.to_owned(), Box::new(event));
    }

    /// Does what it is asked; `None` is a call that it does not know.
    fn act(&mut self, call: &str, id: &str) -> Option<Vec<u8>> {
        match call {
            "RemoveContainer" => self.containers.retain(|c| c.id != id),
            "RemovePodSandbox" => self.sandboxes.retain(|s| s.id != id),
            "RemoveImage" => self.images.retain(|i| i.id != id),
            _ => {}
        }
        let (containers, items) = (self.containers.clone(), self.sandboxes.clone());
        let (images, stats, info) = (self.images.clone(), self.stats.clone(), self.info.clone());
        Some(match call {
            "Status" => StatusResponse { info }.encode_to_vec(),
            "ListContainers" => ListContainersResponse { containers }.encode_to_vec(),
            "ListPodSandbox" => ListPodSandboxResponse { items }.encode_to_vec(),
            "ListImages" => ListImagesResponse { images }.encode_to_vec(),
            "ListContainerStats" => ListContainerStatsResponse { stats }.encode_to_vec(),
            "ContainerStatus" => {
                let mounts = self.mounts.get(id).cloned().unwrap_or_default();
                let status = Some(ContainerStatus { mounts });
                ContainerStatusResponse { status }.encode_to_vec()
            }
            "ImageFsInfo" => self.disks.as_ref()?.encode_to_vec(),
            "RemoveContainer" | "StopPodSandbox" | "RemovePodSandbox" | "RemoveImage" => {
                Empty {}.encode_to_vec()
            }
            _ => return None,
        })
    }
}

fn response(message: Option<Vec<u8>>, code: u32) -> Response<BoxBody<Bytes, Infallible>> {
    let framed = message.map(|message| {
        let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
        let framed = [&[0][..], &length.to_be_bytes(), &message].concat();
        Frame::data(Bytes::from(framed))
    });
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", code.into());
    let frames = framed.into_iter().chain([Frame::trailers(trailers)]);
    let body = StreamBody::new(futures::stream::iter(frames.map(Ok)));
    let mut response = Response::new(BodyExt::boxed(body));
    let kind = http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert("content-type", kind);
    response
}

//! Calls to a container runtime over its socket: gRPC, `runtime.v1`.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use http::uri::PathAndQuery;
use tonic::{
    Code, Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::messages::{
    Container, ContainerRequest, ContainerStats, ContainerStatusResponse, Empty, Image,
    ImageFsInfoResponse, ImageSpec, ListContainerStatsRequest, ListContainerStatsResponse,
    ListContainersResponse, ListImagesResponse, ListPodSandboxResponse, Mount, PodSandbox,
    PodSandboxRequest, RemoveImageRequest, StatusRequest, StatusResponse,
};

/// The largest answer that is read, in bytes: the kubelet's `maxMsgSize`.
const LARGEST_ANSWER: usize = 16 << 20;

/// Why a call has come to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CriError {
    /// No process answers at the socket.
    #[error("{}: {reason}", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// The system's or the transport's words.
        reason: String,
    },
    /// The answer has not come in time.
    #[error("{call}: no answer within {within:?}")]
    Late {
        /// The call.
        call: &'static str,
        /// Time after which the call was given up.
        within: Duration,
    },
    /// The runtime has refused.
    #[error("{call}: {code:?}: {message}")]
    Refused {
        /// The call.
        call: &'static str,
        /// gRPC's code.
        code: Code,
        /// The runtime's words.
        message: String,
    },
}

impl CriError {
    /// Whether the thing that the call was about was not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == Code::NotFound)
    }

    /// Whether another call would fail as well: no process is there, or it is no runtime of this version.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Late { .. } => true,
            Self::Refused { code, .. } => matches!(code, Code::Unimplemented | Code::Unavailable),
        }
    }
}

/// A connection to a runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    socket: PathBuf,
    grpc: Grpc<Channel>,
    within: Duration,
    until: Instant,
}

impl Runtime {
    /// Connects; no call takes longer than `within`, and none lasts beyond `until`.
    ///
    /// # Errors
    /// [`CriError::Unreachable`].
    pub async fn connect(
        socket: &Path,
        within: Duration,
        until: Instant,
    ) -> Result<Self, CriError> {
        let unreachable = |reason: String| CriError::Unreachable {
            socket: socket.to_owned(),
            reason,
        };
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
        let endpoint = endpoint.map_err(|e| unreachable(e.to_string()))?;
        let connected = tokio::time::timeout(within, endpoint.connect()).await;
        let channel = connected
            .map_err(|_| unreachable(format!("no connection within {within:?}")))?
            .map_err(|e| unreachable(root_cause(&e)))?;
        Ok(Self {
            socket: socket.to_owned(),
            grpc: Grpc::new(channel).max_decoding_message_size(LARGEST_ANSWER),
            within,
            until,
        })
    }

    /// Whether there is time for another call.
    pub fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    /// The runtime's configuration as far as it shows it, JSON by topic.
    ///
    /// # Errors
    /// As [`CriError`] says; so for all that follow.
    pub async fn info(&self) -> Result<StatusResponse, CriError> {
        let request = StatusRequest { verbose: true };
        self.call("/runtime.v1.RuntimeService/Status", request)
            .await
    }

    /// All sandboxes.
    pub async fn sandboxes(&self) -> Result<Vec<PodSandbox>, CriError> {
        let path = "/runtime.v1.RuntimeService/ListPodSandbox";
        let answer: ListPodSandboxResponse = self.call(path, Empty {}).await?;
        Ok(answer.items)
    }

    /// All containers, in whatever state.
    pub async fn containers(&self) -> Result<Vec<Container>, CriError> {
        let path = "/runtime.v1.RuntimeService/ListContainers";
        let answer: ListContainersResponse = self.call(path, Empty {}).await?;
        Ok(answer.containers)
    }

    /// All images.
    pub async fn images(&self) -> Result<Vec<Image>, CriError> {
        let path = "/runtime.v1.ImageService/ListImages";
        let answer: ListImagesResponse = self.call(path, Empty {}).await?;
        Ok(answer.images)
    }

    /// Asks the runtime what is mounted into a container.
    pub async fn mounts(&self, container: &str) -> Result<Vec<Mount>, CriError> {
        let path = "/runtime.v1.RuntimeService/ContainerStatus";
        let container_id = container.to_owned();
        let request = ContainerRequest { container_id };
        let answer: ContainerStatusResponse = self.call(path, request).await?;
        Ok(answer.status.unwrap_or_default().mounts)
    }

    /// Asks the runtime what containers use.
    pub async fn container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        let path = "/runtime.v1.RuntimeService/ListContainerStats";
        let filter = Some(Empty {});
        let request = ListContainerStatsRequest { filter };
        let answer: ListContainerStatsResponse = self.call(path, request).await?;
        Ok(answer.stats)
    }

    /// Asks the runtime where images and writable layers lie.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse, CriError> {
        let path = "/runtime.v1.ImageService/ImageFsInfo";
        self.call(path, Empty {}).await
    }

    /// Removes a container that has ended; one that is gone already is none to remove.
    pub async fn remove_container(&self, container: &str) -> Result<(), CriError> {
        let path = "/runtime.v1.RuntimeService/RemoveContainer";
        let container_id = container.to_owned();
        let request = ContainerRequest { container_id };
        self.call(path, request).await.map(|Empty {}| ())
    }

    /// Removes a sandbox. The kubelet stops it before, in case that it still runs (`removeSandbox`): its network goes
    /// then.
    pub async fn remove_sandbox(&self, sandbox: &str) -> Result<(), CriError> {
        let pod_sandbox_id = sandbox.to_owned();
        let request = PodSandboxRequest { pod_sandbox_id };
        for path in [
            "/runtime.v1.RuntimeService/StopPodSandbox",
            "/runtime.v1.RuntimeService/RemovePodSandbox",
        ] {
            let Empty {} = self.call(path, request.clone()).await?;
        }
        Ok(())
    }

    /// Removes an image with all its names.
    pub async fn remove_image(&self, id: &str) -> Result<(), CriError> {
        let path = "/runtime.v1.ImageService/RemoveImage";
        let image = Some(ImageSpec {
            image: id.to_owned(),
        });
        let request = RemoveImageRequest { image };
        self.call(path, request).await.map(|Empty {}| ())
    }

    /// Any call of the interface, by its full name.
    pub async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, CriError>
    where
        Q: prost::Message + 'static,
        A: prost::Message + Default + 'static,
    {
        let call = path.rsplit('/').next().unwrap_or(path);
        let left = self.until.saturating_duration_since(Instant::now());
        let within = self.within.min(left);
        // A clone is another handle of the same connection.
        let mut grpc = self.grpc.clone();
        let answer = async {
            grpc.ready().await.map_err(|e| CriError::Unreachable {
                socket: self.socket.clone(),
                reason: root_cause(&e),
            })?;
            let codec = ProstCodec::<Q, A>::default();
            let path = PathAndQuery::from_static(path);
            let answer = grpc.unary(Request::new(request), path, codec).await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| CriError::Refused {
                    call,
                    code: status.code(),
                    message: status.message().to_owned(),
                })
        };
        let answered = tokio::time::timeout(within, answer).await;
        answered.unwrap_or(Err(CriError::Late { call, within }))
    }
}

/// The transport's own words are "transport error"; what happened is at the bottom.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

//! Pods and containers by the CRI, as the kubelet makes them; the messages have the fields that are set here.

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use evictd::cri::{
    CriError, Runtime,
    messages::{
        Container, ContainerMetadata, ContainerRequest, ContainerState, Empty, Image, ImageSpec,
        PodSandbox, PodSandboxMetadata, PodSandboxRequest,
    },
};

/// `NamespaceMode`'s `NODE`.
const NODE: i32 = 2;

#[derive(Clone, PartialEq, prost::Message)]
struct RunPodSandbox {
    #[prost(message, optional, tag = "1")]
    config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<PodSandboxMetadata>,
    #[prost(string, tag = "3")]
    log_directory: String,
    #[prost(message, optional, tag = "8")]
    linux: Option<LinuxSandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinuxSandboxConfig {
    #[prost(message, optional, tag = "2")]
    security_context: Option<SecurityContext>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SecurityContext {
    #[prost(message, optional, tag = "1")]
    namespace_options: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NamespaceOption {
    #[prost(int32, tag = "1")]
    network: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SandboxId {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CreateContainer {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<SandboxConfig>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    image: Option<ImageSpec>,
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
}

/// The pods of a containerd.
pub struct Pods {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Pods {
    /// Connects.
    ///
    /// # Errors
    /// Nobody answers.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let socket = socket.to_owned();
        let pods = Self { socket, runtime };
        pods.with(async |cri| cri.info().await.map(|_| ()))?;
        Ok(pods)
    }

    /// Asks the runtime something.
    ///
    /// # Errors
    /// What it says.
    pub fn with<T>(&self, ask: impl AsyncFnOnce(&Runtime) -> Result<T, CriError>) -> io::Result<T> {
        let within = Duration::from_secs(60);
        let answer = self.runtime.block_on(async {
            let until = Instant::now() + 2 * within;
            let runtime = Runtime::connect(&self.socket, within, until).await?;
            ask(&runtime).await
        });
        answer.map_err(|e| io::Error::other(e.to_string()))
    }

    /// Starts the sandbox of a pod in the node's network; answers with its id.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn sandbox(&self, uid: &str) -> io::Result<String> {
        let request = RunPodSandbox {
            config: Some(sandbox_config(uid)),
        };
        let path = "/runtime.v1.RuntimeService/RunPodSandbox";
        self.with(async |cri| {
            let made: SandboxId = cri.call(path, request).await?;
            Ok(made.id)
        })
    }

    /// Makes and starts a container; answers with its id.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn container(
        &self,
        uid: &str,
        sandbox: &str,
        attempt: u32,
        image: &str,
        command: &[&str],
    ) -> io::Result<String> {
        let request = CreateContainer {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(ContainerConfig {
                metadata: Some(ContainerMetadata {
                    name: "main".to_owned(),
                    attempt,
                }),
                image: Some(ImageSpec {
                    image: image.to_owned(),
                }),
                command: command.iter().map(|&part| part.to_owned()).collect(),
            }),
            sandbox_config: Some(sandbox_config(uid)),
        };
        self.with(async |cri| {
            let path = "/runtime.v1.RuntimeService/CreateContainer";
            let made: SandboxId = cri.call(path, request).await?;
            let path = "/runtime.v1.RuntimeService/StartContainer";
            let container_id = made.id.clone();
            let Empty {} = cri.call(path, ContainerRequest { container_id }).await?;
            Ok(made.id)
        })
    }

    /// Ends a sandbox and what is in it; it stays as one that has ended.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn stop(&self, sandbox: &str) -> io::Result<()> {
        let pod_sandbox_id = sandbox.to_owned();
        let path = "/runtime.v1.RuntimeService/StopPodSandbox";
        self.with(async |cri| {
            let Empty {} = cri.call(path, PodSandboxRequest { pod_sandbox_id }).await?;
            Ok(())
        })
    }

    /// Waits until a container has ended.
    ///
    /// # Errors
    /// What the runtime says, or it goes on for a minute.
    pub fn wait_for_end(&self, id: &str) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let all = self.containers()?;
            let ended = |c: &Container| c.id == id && c.state() == ContainerState::Exited;
            if all.iter().any(ended) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(io::Error::other(format!("container {id} does not end")))
    }

    /// All containers.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn containers(&self) -> io::Result<Vec<Container>> {
        self.with(async |cri| cri.containers().await)
    }

    /// All sandboxes.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn sandboxes(&self) -> io::Result<Vec<PodSandbox>> {
        self.with(async |cri| cri.sandboxes().await)
    }

    /// All images.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn images(&self) -> io::Result<Vec<Image>> {
        self.with(async |cri| cri.images().await)
    }

    /// Ends and removes everything.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn remove_all(&self) -> io::Result<()> {
        self.with(async |cri| {
            for sandbox in cri.sandboxes().await? {
                cri.remove_sandbox(&sandbox.id).await?;
            }
            Ok(())
        })
    }
}

fn sandbox_config(uid: &str) -> SandboxConfig {
    let namespace_options = Some(NamespaceOption { network: NODE });
    SandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        log_directory: String::new(),
        linux: Some(LinuxSandboxConfig {
            security_context: Some(SecurityContext { namespace_options }),
        }),
    }
}

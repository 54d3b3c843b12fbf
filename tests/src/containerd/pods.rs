//! Pods and containers by the CRI, as the kubelet makes them.

use evictd_cri::{
    CriError, Runtime,
    messages::{
        Container, ContainerRequest, ContainerState, Empty, Image, PodSandbox, PodSandboxMetadata,
        PodSandboxRequest,
    },
};

use super::messages::{
    ContainerConfig, CreateContainer, LinuxSandboxConfig, NODE, NamespaceOption, RunPodSandbox,
    SandboxConfig, SandboxId, SecurityContext,
};
use crate::prelude::*;

pub struct Pods {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

impl Pods {
    pub fn connect(socket: &Path) -> Result<Self> {
        let runtime = crate::current_thread()?;
        let socket = socket.to_owned();
        let pods = Self { socket, runtime };
        pods.with(async |cri| cri.info().await.map(|_| ()))?;
        Ok(pods)
    }

    pub fn with<T>(&self, ask: impl AsyncFnOnce(&Runtime) -> Result<T, CriError>) -> Result<T> {
        let within = Duration::from_secs(60);
        let answer = self.runtime.block_on(async {
            let until = Instant::now() + 2 * within;
            let runtime = Runtime::connect(&self.socket, within, until).await?;
            ask(&runtime).await
        });
        Ok(answer?)
    }

    /// Starts the sandbox of a pod in the node's network; answers with its id.
    pub fn sandbox(&self, uid: &str) -> Result<String> {
        self.run_sandbox(sandbox_config(uid, Path::new(""), false))
    }

    pub(super) fn run_sandbox(&self, config: SandboxConfig) -> Result<String> {
        let request = RunPodSandbox {
            config: Some(config),
        };
        let path = "/runtime.v1.RuntimeService/RunPodSandbox";
        self.with(async |cri| {
            let made: SandboxId = cri.call(path, request).await?;
            Ok(made.id)
        })
    }

    /// Makes and starts a container; answers with its id.
    pub fn container(
        &self,
        uid: &str,
        sandbox: &str,
        attempt: u32,
        image: &str,
        command: &[&str],
    ) -> Result<String> {
        let config = ContainerConfig {
            command: command.iter().map(|&part| part.to_owned()).collect(),
            ..ContainerConfig::named("main", attempt, image)
        };
        self.create(sandbox, config, sandbox_config(uid, Path::new(""), false))
    }

    pub(super) fn create(
        &self,
        sandbox: &str,
        config: ContainerConfig,
        sandbox_config: SandboxConfig,
    ) -> Result<String> {
        let request = CreateContainer {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
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
    pub fn stop(&self, sandbox: &str) -> Result<()> {
        let pod_sandbox_id = sandbox.to_owned();
        let path = "/runtime.v1.RuntimeService/StopPodSandbox";
        self.with(async |cri| {
            let Empty {} = cri.call(path, PodSandboxRequest { pod_sandbox_id }).await?;
            Ok(())
        })
    }

    pub fn wait_for_end(&self, id: &str) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            let all = self.containers()?;
            let ended = |c: &Container| c.id == id && c.state() == ContainerState::Exited;
            if all.iter().any(ended) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("container {id} does not end")
    }

    pub fn containers(&self) -> Result<Vec<Container>> {
        self.with(async |cri| cri.containers().await)
    }

    pub fn sandboxes(&self) -> Result<Vec<PodSandbox>> {
        self.with(async |cri| cri.sandboxes().await)
    }

    pub fn images(&self) -> Result<Vec<Image>> {
        self.with(async |cri| cri.images().await)
    }

    pub fn remove_all(&self) -> Result<()> {
        self.with(async |cri| {
            for sandbox in cri.sandboxes().await? {
                cri.remove_sandbox(&sandbox.id).await?;
            }
            Ok(())
        })
    }
}

/// A pod in the node's network, and among its processes if they are shared.
pub(super) fn sandbox_config(uid: &str, logs: &Path, shares_pids: bool) -> SandboxConfig {
    let namespace_options = Some(NamespaceOption {
        network: NODE,
        pid: if shares_pids { NODE } else { 0 },
    });
    SandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: format!("pod-{uid}"),
            uid: uid.to_owned(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        log_directory: logs.display().to_string(),
        linux: Some(LinuxSandboxConfig {
            security_context: Some(SecurityContext {
                namespace_options,
                privileged: false,
            }),
        }),
    }
}

//! `cargo xtask e2e`: evictd on a real cluster. Deploys `deploy/manifests`, starts pods of several classes on one node,
//! lets one of them take all memory, and looks at what the cluster says: Events by evictd, no OOM kill, no restart,
//! all other pods alive. Whatever happens, it takes away what it has brought.

/// As `println!`, also where the terminal is gone: the clean-up goes on.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}

mod agent;
mod apply;
mod images;
mod importer;
mod install;
mod machine;
mod node;
mod objects;
mod patience;
mod seen;
mod threshold;
mod verdicts;
mod workload;

use clap::Parser;
use kube::{Client, Config};
use tokio::signal::unix::{SignalKind, signal};

use evictd_tests::prelude::*;
use install::Installation;
use node::Target;

const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Tells the whole story on the cluster that KUBECONFIG names.
#[derive(Parser)]
#[command(name = "cargo xtask e2e", bin_name = "cargo xtask e2e --")]
pub struct Arguments {
    /// The image of evictd as the node can have it. Without it the one that was just built is imported, which needs
    /// the node to be this machine or a container of it, and containerd or CRI-O on it
    #[arg(long)]
    image: Option<String>,
    /// The same for the image of the pods, which `cargo xtask image --with-hog` writes
    #[arg(long)]
    hog_image: Option<String>,
    /// The node: by default this machine if it is one, otherwise the first that takes pods
    #[arg(long)]
    node: Option<String>,
    /// evictd is installed already: use that one, and leave it there
    #[arg(long, conflicts_with_all = ["image", "privileged", "threshold", "kubelet_config"])]
    installed: bool,
    /// Leave evictd and the pods where they are
    #[arg(long)]
    keep: bool,
    /// MiB that the hog takes in a second; 0: as fast as it can
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// The hard threshold for memory.available: `2Gi`, `30%`, or `own` for the manifests', which is 100Mi above the
    /// kubelet's. Without it that one, but 512Mi or an eighth of what pods can have, whichever is less, where the kubelet's
    /// is below it: a node that runs the control plane as well is denied that way
    #[arg(long)]
    threshold: Option<String>,
    /// The kubelet's configuration file on the node; `none` if it has none
    #[arg(long)]
    kubelet_config: Option<String>,
    /// Run evictd privileged, to tell a missing capability from other trouble
    #[arg(long)]
    privileged: bool,
    /// Seconds until the hog must have been evicted; by default ten minutes, or longer where it needs longer to fill
    /// the node
    #[arg(long)]
    timeout: Option<u64>,
    /// Seconds that Events and the taint may take after the kill
    #[arg(long, default_value_t = 30)]
    settle: u64,
    /// All pods in the node's own network; by itself on a node that has no network for pods
    #[arg(long)]
    host_network: bool,
    /// Where the manifests are
    #[arg(long, default_value = "deploy/manifests")]
    manifests: PathBuf,
    /// Where the archives of the images are
    #[arg(long, default_value = "target/image")]
    archives: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if std::env::var_os("KUBECONFIG").is_none_or(|path| path.is_empty()) {
        say!("SKIPPED e2e: KUBECONFIG is not set, so that there is no cluster to run it on");
        return Ok(());
    }
    let runtime = evictd_tests::current_thread()?;
    runtime.block_on(run(&arguments))
}

async fn run(arguments: &Arguments) -> Result<()> {
    let config = Config::infer().await;
    let mut config = config.context("KUBECONFIG cannot be used")?;
    // A server that never answers must not hold up the clean-up.
    config.read_timeout = Some(READ_TIMEOUT);
    let client = Client::try_from(config).context("KUBECONFIG cannot be used")?;
    let version = client.apiserver_version().await;
    let version = version.context("the API server that KUBECONFIG names does not answer")?;
    let mut target = node::choose(&client, arguments.node.as_deref()).await?;
    target.host_network |= arguments.host_network;
    let target = target;
    say!("e2e: Kubernetes {}, {target}", version.git_version);

    let images = images::provide(arguments, &target)?;
    let installation = Installation::prepare(&client, arguments, &target, &images).await?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut hung_up = signal(SignalKind::hangup())?;
    let told = tokio::select! {
        told = story(arguments, &client, &target, &installation, &images.hog) => told,
        _ = tokio::signal::ctrl_c() => Err(anyhow::anyhow!("interrupted")),
        _ = terminated.recv() => Err(anyhow::anyhow!("terminated")),
        _ = hung_up.recv() => Err(anyhow::anyhow!("the terminal is gone")),
    };
    if told.is_err() {
        installation.explain(&client, &target).await;
    }
    if arguments.keep {
        say!("e2e: everything is left where it is (--keep)");
        return told;
    }
    let cast_gone = workload::remove(&client).await;
    let cast_gone = cast_gone.context("the pods of the story are still there");
    if let Err(error) = &cast_gone {
        say!("e2e: {error:#}");
    }
    let removed = installation.remove(&client, &target).await;
    told.and(cast_gone).and(removed)
}

/// All of it, between the first object applied and the last one removed.
async fn story(
    arguments: &Arguments,
    client: &Client,
    target: &Target,
    installation: &Installation,
    hog_image: &str,
) -> Result<()> {
    installation.apply(client).await?;
    installation.wait_until_watching(client, target).await?;
    let workload = workload::Cast::start(client, target, hog_image).await?;
    let before = verdicts::Before::look(client, target, arguments.installed).await?;
    say!(
        "e2e: the hog takes {} MiB a second of {} MiB",
        arguments.rate,
        target.capacity_mib
    );
    let filled = target.capacity_mib.checked_div(arguments.rate).unwrap_or(0);
    let timeout = arguments.timeout.unwrap_or(600.max(300 + 2 * filled));
    let timeout = Duration::from_secs(timeout);
    let seen = workload
        .hog(target.capacity_mib, arguments.rate, timeout)
        .await?;
    let settle = Duration::from_secs(arguments.settle);
    let found = verdicts::look(client, target, &workload, &before, &seen, settle).await?;
    installation.quote(client, target).await;
    let failed = found.iter().filter(|v| !v.good).count();
    for status in &found {
        let word = if status.good { "ok    " } else { "FAILED" };
        say!("  {word} {}", status.text);
    }
    ensure!(
        failed == 0,
        "{failed} of {} checks have failed",
        found.len()
    );
    say!("e2e: all {} checks passed", found.len());
    Ok(())
}

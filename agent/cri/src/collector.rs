//! One reclaim: ask what there is, remove what is not in use, stop when the time is over.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use evictd_config::CriConfig;
use evictd_engine::{
    NodeReclaim,
    node_reclaim::{KnownPods, LayerUsage, Removed},
};
use evictd_sys::clock::monotonic_ns;
use tokio::task::JoinSet;

use super::{
    client::{CriError, Runtime},
    images::{ImageRecords, InUse, is_used},
    messages::{Container, Image},
};
use crate::{RuntimeDisks, disks, exited};

/// A list of containers is asked for again before an image is removed when it is older than this: a container that has
/// started in the meantime may use it.
const FRESH: Duration = Duration::from_secs(1);

/// Number of containers that are asked about at once.
const AT_ONCE: usize = 8;

/// Reclaims, and remembers what it has seen of images.
#[derive(Debug)]
pub struct Reclaimer {
    config: CriConfig,
    records: ImageRecords,
    mounted: Mounted,
}

/// The images that are mounted into containers, by container. That stays as it is as long as the container is there.
type Mounted = HashMap<String, Vec<String>>;

impl Reclaimer {
    /// Creates a reclaimer that has seen nothing yet.
    pub fn new(config: CriConfig) -> Self {
        Self {
            config,
            records: ImageRecords::default(),
            mounted: Mounted::new(),
        }
    }

    /// Looks which images there are and which are in use, as the kubelet does from time to time.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn look(&mut self) -> Result<(), CriError> {
        let runtime = connect(&self.config).await?;
        let (images, in_use) = look(&runtime, &mut self.mounted, &mut Removed::default()).await?;
        self.records.detect(monotonic_ns(), &images, &in_use);
        Ok(())
    }

    /// Removes what is not in use. What a runtime refuses to remove is counted, and the rest goes on.
    ///
    /// # Errors
    /// The runtime does not answer, or not as one: what was removed before that is in the second part.
    pub async fn reclaim(
        &mut self,
        what: &[NodeReclaim],
        known: &KnownPods,
    ) -> Result<Removed, (CriError, Removed)> {
        let mut removed = Removed::default();
        let done = self.reclaim_into(what, known, &mut removed).await;
        match done {
            Ok(()) => Ok(removed),
            Err(CriError::Late { .. }) if removed.is_cut_short => Ok(removed),
            Err(error) => Err((error, removed)),
        }
    }

    async fn reclaim_into(
        &mut self,
        what: &[NodeReclaim],
        known: &KnownPods,
        removed: &mut Removed,
    ) -> Result<(), CriError> {
        let runtime = connect(&self.config).await?;
        if what.contains(&NodeReclaim::Containers) {
            remove_dead(&runtime, known, removed).await?;
        }
        if what.contains(&NodeReclaim::Images) {
            self.remove_images(&runtime, removed).await?;
        }
        Ok(())
    }

    /// Asks the runtime what writable layers use, by its own count.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn layers(config: &CriConfig) -> Result<LayerUsage, CriError> {
        let runtime = connect(config).await?;
        let stats = runtime.container_stats().await?;
        Ok(disks::layers(&stats, &runtime.containers().await?))
    }

    /// Asks the runtime where it keeps images and writable layers.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn disks(config: &CriConfig) -> Result<RuntimeDisks, CriError> {
        let runtime = connect(config).await?;
        Ok((&runtime.image_fs_info().await?).into())
    }

    async fn remove_images(
        &mut self,
        runtime: &Runtime,
        removed: &mut Removed,
    ) -> Result<(), CriError> {
        let (images, mut in_use) = look(runtime, &mut self.mounted, removed).await?;
        let mut looked = Instant::now();
        let now = monotonic_ns();
        self.records.detect(now, &images, &in_use);
        let age = self.config.image_minimum_gc_age;
        for image in self.records.unused(now, &images, &in_use, age) {
            if looked.elapsed() > FRESH {
                used_by(&runtime.containers().await?, &mut in_use);
                looked = Instant::now();
            }
            if is_used(image, &in_use) {
                continue;
            }
            if goes_on(removed, runtime) && note(removed, runtime.remove_image(&image.id).await)? {
                tracing::info!(
                    image = image.id, names = ?image.repo_tags, bytes = image.size,
                    "an unused image is removed"
                );
                removed.images += 1;
                removed.image_bytes = removed.image_bytes.saturating_add(image.size);
            }
        }
        Ok(())
    }
}

async fn connect(config: &CriConfig) -> Result<Runtime, CriError> {
    let until = Instant::now() + config.reclaim_timeout;
    Runtime::connect(&config.socket, config.request_timeout, until).await
}

async fn remove_dead(
    runtime: &Runtime,
    known: &KnownPods,
    removed: &mut Removed,
) -> Result<(), CriError> {
    // In this order: the sandbox of every container that is listed is listed too.
    let mut containers = runtime.containers().await?;
    let sandboxes = runtime.sandboxes().await?;
    let left = exited::left_to_kubelet(&containers, &sandboxes, known);
    removed.left_to_kubelet = u64::try_from(left).unwrap_or(u64::MAX);
    for id in exited::containers(&containers, &sandboxes, known) {
        if goes_on(removed, runtime) && note(removed, runtime.remove_container(&id).await)? {
            tracing::info!(container = id, "a container that has ended is removed");
            removed.containers += 1;
            containers.retain(|c| c.id != id);
        }
    }
    for id in exited::sandboxes(&containers, &sandboxes, known) {
        if goes_on(removed, runtime) && note(removed, runtime.remove_sandbox(&id).await)? {
            tracing::info!(sandbox = id, "a sandbox that has ended is removed");
            removed.sandboxes += 1;
        }
    }
    Ok(())
}

/// Whether there is time for one more.
fn goes_on(removed: &mut Removed, runtime: &Runtime) -> bool {
    let goes_on = runtime.has_time();
    removed.is_cut_short |= !goes_on;
    goes_on
}

/// Whether something was removed; an error that the next one would meet as well ends the reclaim.
fn note(removed: &mut Removed, outcome: Result<(), CriError>) -> Result<bool, CriError> {
    match outcome {
        Ok(()) => Ok(true),
        // Another client was faster; most likely the kubelet.
        Err(error) if error.is_not_found() => Ok(false),
        // It has just told what there is: a large image takes its time.
        Err(error @ CriError::Late { .. }) => {
            removed.is_cut_short = true;
            Err(error)
        }
        Err(error) if error.is_final() => Err(error),
        Err(error) => {
            refuse(removed, &error);
            Ok(false)
        }
    }
}

fn refuse(removed: &mut Removed, error: &CriError) {
    removed.refused += 1;
    removed.refusal = Some(error.to_string());
}

/// All images, and what is in use. In this order: a container that begins in between has its image in the second part.
async fn look(
    runtime: &Runtime,
    mounted: &mut Mounted,
    removed: &mut Removed,
) -> Result<(Vec<Image>, InUse), CriError> {
    let images = runtime.images().await?;
    let containers = runtime.containers().await?;
    let mut in_use = InUse::new();
    used_by(&containers, &mut in_use);
    // What has ended may be started again with the same image volumes.
    let listed: HashSet<&str> = containers.iter().map(|c| &*c.id).collect();
    mounted.retain(|id, _| listed.contains(&**id));
    let unknown = listed.into_iter().filter(|id| !mounted.contains_key(*id));
    let unknown: Vec<String> = unknown.map(str::to_owned).collect();
    let mut unknown = unknown.into_iter();
    let mut asked = JoinSet::new();
    loop {
        for id in unknown.by_ref().take(AT_ONCE - asked.len()) {
            let runtime = runtime.clone();
            asked.spawn(async move {
                let answer = runtime.mounts(&id).await;
                (id, answer)
            });
        }
        let Some(done) = asked.join_next().await else {
            break;
        };
        let Ok((id, answer)) = done else { continue };
        match answer {
            Ok(mounts) => {
                let images = mounts.into_iter().filter_map(|m| m.image);
                let images = images.map(|image| image.image).collect();
                mounted.insert(id, images);
            }
            Err(error) if error.is_not_found() => {}
            // A container that the runtime cannot tell of does not keep the unused images of all others.
            Err(error @ CriError::Late { .. }) if runtime.has_time() => refuse(removed, &error),
            Err(error) if error.is_final() => return Err(error),
            Err(error) => refuse(removed, &error),
        }
    }
    in_use.extend(mounted.values().flatten().cloned());
    in_use.extend(sandbox_image(runtime).await?);
    Ok((images, in_use))
}

/// An image counts as used by a container that has ended as well, until that one is removed.
fn used_by(containers: &[Container], in_use: &mut InUse) {
    for container in containers {
        let asked_for = container.image.as_ref().map(|spec| &spec.image);
        let names = [&container.image_ref, &container.image_id];
        let names = names.into_iter().chain(asked_for);
        in_use.extend(names.filter(|name| !name.is_empty()).cloned());
    }
}

/// The image of the sandboxes. containerd pins it since 1.7; an older one says in its configuration which it is.
async fn sandbox_image(runtime: &Runtime) -> Result<Option<String>, CriError> {
    let status = runtime.info().await?;
    let config = status.info.get("config");
    let config: Option<serde_json::Value> = config.and_then(|c| serde_json::from_str(c).ok());
    let image = config.as_ref().and_then(|c| c["sandboxImage"].as_str());
    Ok(image.map(str::to_owned))
}

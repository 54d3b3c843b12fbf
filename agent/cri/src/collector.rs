//! One reclaim: ask what there is, remove what is not in use, stop when the time is over.

use std::time::{Duration, Instant};

use evictd_config::CriConfig;
use evictd_engine::{
    NodeReclaim,
    reclaim::{KnownPods, Removed},
};
use evictd_sys::clock::monotonic_ns;

use super::{
    client::{CriError, Runtime},
    images::{ImageRecords, InUse, is_used},
    messages::{Container, ContainerState, Image},
};
use crate::exited;

/// A list of containers is asked for again before an image is removed when it is older than this: a container that has
/// started in the meantime may use it.
const FRESH: Duration = Duration::from_secs(1);

/// Reclaims, and remembers what it has seen of images.
#[derive(Debug)]
pub struct Reclaimer {
    config: CriConfig,
    records: ImageRecords,
}

impl Reclaimer {
    /// Nothing was seen yet.
    pub fn new(config: CriConfig) -> Self {
        Self {
            config,
            records: ImageRecords::default(),
        }
    }

    /// Looks which images there are and which are in use, as the kubelet does from time to time.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn look(&mut self) -> Result<(), CriError> {
        let runtime = self.connect().await?;
        let (images, in_use) = look(&runtime).await?;
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
        let runtime = self.connect().await?;
        if what.contains(&NodeReclaim::Containers) {
            remove_dead(&runtime, known, removed).await?;
        }
        if what.contains(&NodeReclaim::Images) {
            self.remove_images(&runtime, removed).await?;
        }
        Ok(())
    }

    async fn connect(&self) -> Result<Runtime, CriError> {
        let CriConfig {
            socket,
            request_timeout,
            reclaim_timeout,
            ..
        } = &self.config;
        let until = Instant::now() + *reclaim_timeout;
        Runtime::connect(socket, *request_timeout, until).await
    }

    async fn remove_images(
        &mut self,
        runtime: &Runtime,
        removed: &mut Removed,
    ) -> Result<(), CriError> {
        let (images, mut in_use) = look(runtime).await?;
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
                tracing::info!(image = image.id, names = ?image.repo_tags, bytes = image.size, "an unused image is removed");
                removed.images += 1;
                removed.image_bytes = removed.image_bytes.saturating_add(image.size);
            }
        }
        Ok(())
    }
}

async fn remove_dead(
    runtime: &Runtime,
    known: &KnownPods,
    removed: &mut Removed,
) -> Result<(), CriError> {
    // In this order: the sandbox of every container that is listed is listed too.
    let mut containers = runtime.containers().await?;
    let sandboxes = runtime.sandboxes().await?;
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
            removed.refused += 1;
            removed.refusal = Some(error.to_string());
            Ok(false)
        }
    }
}

/// All images, and what is in use. In this order: a container that begins in between has its image in the second part.
async fn look(runtime: &Runtime) -> Result<(Vec<Image>, InUse), CriError> {
    let images = runtime.images().await?;
    let containers = runtime.containers().await?;
    let mut in_use = InUse::new();
    used_by(&containers, &mut in_use);
    for container in &containers {
        // What has ended mounts nothing any more.
        if container.state() == ContainerState::Exited {
            continue;
        }
        match runtime.mounts(&container.id).await {
            Ok(mounts) => {
                in_use.extend(mounts.into_iter().filter_map(|m| m.image).map(|i| i.image))
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
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

//! Which images are not in use, oldest first, as the kubelet's image garbage collection sees it (`DeleteUnusedImages`
//! in image_gc_manager.go).
//!
//! A runtime does not tell when an image came or was last used, so the kubelet looks every five minutes and remembers;
//! so does this.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use super::messages::Image;

/// Names of images that containers and the runtime itself use: ids, tags, digests.
pub type InUse = BTreeSet<String>;

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Nanoseconds of the clock; `None` for those that were there at the first look, whose age is not known.
    first_detected: Option<u64>,
    last_used: Option<u64>,
}

/// Records of the images that were seen.
#[derive(Clone, Debug, Default)]
pub struct ImageRecords {
    records: HashMap<String, Record>,
    looked: bool,
}

/// Whether a container or the runtime uses an image.
pub fn is_used(image: &Image, in_use: &InUse) -> bool {
    std::iter::once(&image.id)
        .chain(&image.repo_tags)
        .chain(&image.repo_digests)
        .any(|name| in_use.contains(name))
}

impl ImageRecords {
    /// Takes note of a look (`detectImages`). `now` is nanoseconds of any one clock.
    pub fn detect(&mut self, now: u64, images: &[Image], in_use: &InUse) {
        let first_detected = self.looked.then_some(now);
        self.looked = true;
        let present: BTreeSet<&str> = images.iter().map(|image| &*image.id).collect();
        self.records.retain(|id, _| present.contains(&**id));
        for image in images {
            let unseen = Record {
                first_detected,
                last_used: None,
            };
            let record = self.records.entry(image.id.clone()).or_insert(unseen);
            if is_used(image, in_use) {
                record.last_used = Some(now);
            }
        }
    }

    /// The images that may be removed, in the order of removal: least recently used first, among those the one that
    /// came first. Not those in use, not those that are pinned, and not those younger than `minimum_age`: they may have
    /// been pulled for a container that starts right now. The kubelet keeps to that under pressure as well.
    pub fn unused<'a>(
        &self,
        now: u64,
        images: &'a [Image],
        in_use: &InUse,
        minimum_age: Duration,
    ) -> Vec<&'a Image> {
        let is_old = |first_detected: Option<u64>| {
            first_detected
                .is_none_or(|at| u128::from(now.saturating_sub(at)) >= minimum_age.as_nanos())
        };
        let mut unused: Vec<(Option<u64>, Option<u64>, &Image)> = images
            .iter()
            .filter(|image| !image.pinned && !is_used(image, in_use))
            .filter_map(|image| {
                let record = self.records.get(&image.id)?;
                is_old(record.first_detected).then_some((
                    record.last_used,
                    record.first_detected,
                    image,
                ))
            })
            .collect();
        unused.sort_by(|a, b| (a.0, a.1, &a.2.id).cmp(&(b.0, b.1, &b.2.id)));
        unused.into_iter().map(|(_, _, image)| image).collect()
    }
}

#[cfg(test)]
mod tests {
    use evictd_engine::units::SECOND;

    use super::*;

    const AGE: Duration = Duration::from_secs(120);

    fn image(id: &str) -> Image {
        Image {
            id: id.into(),
            repo_tags: vec![format!("{id}:latest")],
            ..Image::default()
        }
    }

    fn ids(images: Vec<&Image>) -> Vec<&str> {
        images.into_iter().map(|image| &*image.id).collect()
    }

    fn used(names: &[&str]) -> InUse {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    // R8
    #[test]
    fn the_least_recently_used_goes_first() {
        let all = ["a", "b", "c", "d"].map(image);
        let mut records = ImageRecords::default();
        records.detect(SECOND, &all[..3], &used(&["a"]));
        records.detect(2 * SECOND, &all, &used(&["b:latest"]));
        let now = 500 * SECOND;
        let in_use = InUse::default();
        // Never used before used; of those the one that came first.
        assert_eq!(
            ids(records.unused(now, &all, &in_use, AGE)),
            ["c", "d", "a", "b"]
        );
        assert_eq!(
            ids(records.unused(now, &all, &used(&["c", "a"]), AGE)),
            ["d", "b"]
        );
    }

    // R8
    #[test]
    fn pinned_images_and_young_ones_stay() {
        let mut all = ["old", "young", "pinned"].map(image);
        all[2].pinned = true;
        let in_use = InUse::default();
        let mut records = ImageRecords::default();
        records.detect(0, &all[..1], &in_use);
        records.detect(SECOND, &all, &in_use);
        assert_eq!(ids(records.unused(2 * SECOND, &all, &in_use, AGE)), ["old"]);
        let later = 121 * SECOND;
        assert_eq!(
            ids(records.unused(later, &all, &in_use, AGE)),
            ["old", "young"]
        );
        assert_eq!(
            ids(records.unused(SECOND, &all, &in_use, Duration::ZERO)),
            ["old", "young"]
        );
        // One that was not there at the last look has no age.
        assert_eq!(
            ids(records.unused(later, &[image("new")], &in_use, AGE)),
            [""; 0]
        );
    }

    #[test]
    fn an_image_that_went_and_came_back_is_a_new_one() {
        let all = [image("a")];
        let in_use = InUse::default();
        let mut records = ImageRecords::default();
        records.detect(0, &all, &in_use);
        records.detect(SECOND, &[], &in_use);
        records.detect(2 * SECOND, &all, &in_use);
        assert!(records.unused(3 * SECOND, &all, &in_use, AGE).is_empty());
    }
}

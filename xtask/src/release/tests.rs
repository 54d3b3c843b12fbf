use std::{io::Read as _, os::unix::fs::PermissionsExt as _, sync::LazyLock};

use flate2::read::GzDecoder;

use super::{
    Artifacts, ELF, Inputs, VERSION, artifacts, chart, entry, hex, read_tree, sbom, write,
};
use crate::{
    image::{
        Arch, Provenance, oci,
        verify::{blob, files},
    },
    prelude::*,
};

/// Made once for all tests.
static RELEASE: LazyLock<Artifacts> = LazyLock::new(release);

fn release() -> Artifacts {
    let root = workspace_root();
    let arches = [Arch::Amd64, Arch::Arm64];
    artifacts(&Inputs {
        root,
        binaries: arches
            .map(|arch| (arch, format!("program for {}", arch.name()).into_bytes()))
            .to_vec(),
        provenance: Provenance {
            created: "2026-11-21T06:00:00Z".to_owned(),
            revision: Some("0123abcd".to_owned()),
        },
        crates: Vec::from(arches.map(|arch| (arch, sbom::crates(root, arch).unwrap()))),
        compiler: "rustc 1.95.0".to_owned(),
    })
    .unwrap()
}

fn json(content: &[u8]) -> Value {
    serde_json::from_slice(content).unwrap()
}

#[test]
fn one_image_serves_all_architectures() {
    let release = &*RELEASE;
    let image = files(&release[&format!("evictd-{VERSION}.oci.tar")]).unwrap();
    let entry = json(&image["index.json"])["manifests"][0].clone();
    assert_eq!(entry["mediaType"], oci::INDEX);
    let name = entry["annotations"][oci::CONTAINERD_NAME].as_str().unwrap();
    assert_eq!(name, format!("localhost/evictd:{VERSION}"));
    let index = json(blob(&image, &entry).unwrap());
    let mut seen = 1;
    let mut arches = Vec::new();
    for descriptor in index["manifests"].as_array().unwrap() {
        let arch = descriptor["platform"]["architecture"].as_str().unwrap();
        let manifest = json(blob(&image, descriptor).unwrap());
        let configuration = json(blob(&image, &manifest["config"]).unwrap());
        assert_eq!(configuration["architecture"], arch);
        let layer = files(blob(&image, &manifest["layers"][0]).unwrap()).unwrap();
        assert_eq!(layer["evictd"], format!("program for {arch}").into_bytes());
        assert_eq!(
            layer["evictd"],
            release[&format!("evictd-{VERSION}-linux-{arch}")]
        );
        arches.push(arch.to_owned());
        seen += 3;
    }
    assert_eq!(arches, ["amd64", "arm64"]);
    let blobs = image
        .keys()
        .filter(|name| name.starts_with("blobs/"))
        .count();
    assert_eq!(blobs, seen, "nothing that no document refers to");
}

#[test]
fn the_chart_is_the_checkouts() {
    let release = &*RELEASE;
    let layout = files(&release[&format!("evictd-chart-{VERSION}.oci.tar")]).unwrap();
    let manifest = json(&layout["index.json"])["manifests"][0].clone();
    let manifest = json(blob(&layout, &manifest).unwrap());
    assert_eq!(manifest["config"]["mediaType"], chart::CONFIGURATION);
    let metadata = json(blob(&layout, &manifest["config"]).unwrap());
    assert_eq!(
        (metadata["name"].as_str(), metadata["version"].as_str()),
        (Some("evictd"), Some(VERSION))
    );
    assert_eq!(manifest["layers"][0]["mediaType"], chart::LAYER);
    let package = blob(&layout, &manifest["layers"][0]).unwrap();
    assert_eq!(package, release[&format!("evictd-chart-{VERSION}.tgz")]);
    let mut tar = Vec::new();
    GzDecoder::new(package).read_to_end(&mut tar).unwrap();
    let directory = workspace_root().join("deploy/chart/evictd");
    assert_eq!(
        files(&tar).unwrap(),
        read_tree(&directory, "evictd").unwrap()
    );
}

#[test]
fn definitions_and_manifests_are_part_of_it() {
    let release = &*RELEASE;
    let crd = fs::read(workspace_root().join("deploy/crds/evictionpolicies.yaml")).unwrap();
    assert_eq!(release["crd-evictionpolicies.yaml"], crd);
    let manifests = files(&release[&format!("evictd-manifests-{VERSION}.tar")]).unwrap();
    assert!(manifests.contains_key("manifests/kustomization.yaml"));
    let told = String::from_utf8(release["RELEASE.md"].clone()).unwrap();
    assert!(told.starts_with(&format!("## {VERSION}")), "{told}");
}

#[test]
fn checksums_and_provenance_cover_every_file() {
    let release = &*RELEASE;
    let sums = String::from_utf8(release["SHA256SUMS"].clone()).unwrap();
    let sums: BTreeMap<&str, &str> = sums
        .lines()
        .map(|line| line.split_once("  ").unwrap())
        .map(|(sum, name)| (name, sum))
        .collect();
    let statement = json(&release["provenance.intoto.json"]);
    let subjects: BTreeMap<&str, &str> = statement["subject"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| {
            (
                s["name"].as_str().unwrap(),
                s["digest"]["sha256"].as_str().unwrap(),
            )
        })
        .collect();
    for (name, content) in release {
        let sum = hex(content);
        if name != "SHA256SUMS" {
            assert_eq!(sums[name.as_str()], sum, "{name}");
            if name != "provenance.intoto.json" {
                assert_eq!(subjects[name.as_str()], sum, "{name}");
            }
        }
    }
    assert_eq!(
        (sums.len(), subjects.len()),
        (release.len() - 1, release.len() - 2)
    );
    let definition = &statement["predicate"]["buildDefinition"];
    assert_eq!(
        definition["resolvedDependencies"][0]["digest"]["gitCommit"],
        "0123abcd"
    );
    assert_eq!(definition["internalParameters"]["compiler"], "rustc 1.95.0");
}

#[test]
fn the_sbom_names_what_is_linked_and_nothing_else() {
    let release = &*RELEASE;
    let bom = json(&release[&format!("evictd-{VERSION}-linux-amd64.cdx.json")]);
    assert_eq!(
        bom["metadata"]["component"]["purl"],
        format!("pkg:cargo/evictd@{VERSION}")
    );
    let components = bom["components"].as_array().unwrap();
    let names: Vec<&str> = components
        .iter()
        .map(|c| c["name"].as_str().unwrap())
        .collect();
    for linked in ["aya", "kube", "evictd-engine", "serde", "libc"] {
        assert!(names.contains(&linked), "{linked}: {names:?}");
    }
    for other in ["proptest", "serde_derive", "evictd-tests", "xtask"] {
        assert!(!names.contains(&other), "{other}");
    }
    // Every reference has its component.
    let mut known: Vec<&Value> = components.iter().map(|c| &c["bom-ref"]).collect();
    known.push(&bom["metadata"]["component"]["bom-ref"]);
    for dependency in bom["dependencies"].as_array().unwrap() {
        assert!(known.contains(&&dependency["ref"]));
        for on in dependency["dependsOn"].as_array().unwrap() {
            assert!(known.contains(&on), "{on}");
        }
    }
    let without = components.iter().filter(|c| {
        let own = c["name"].as_str().unwrap().starts_with("evictd");
        !own && c.get("licenses").is_none()
    });
    assert_eq!(without.count(), 0, "every crate says its license");
}

#[test]
fn the_same_commit_gives_the_same_bytes() {
    assert!(release() == *RELEASE);
}

#[test]
fn a_release_is_written_whole_and_over_no_other_directory() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let files = Artifacts::from([
        ("SHA256SUMS".to_owned(), Vec::new()),
        ("a".to_owned(), b"1".to_vec()),
        ("program".to_owned(), ELF.to_vec()),
    ]);
    write(&out, &files).unwrap();
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().permissions().mode();
    assert_eq!(mode("program") & 0o111, 0o111, "it can be run");
    assert_eq!(mode("a") & 0o111, 0);
    fs::write(out.join("left-over"), "").unwrap();
    write(&out, &files).unwrap();
    assert!(!out.join("left-over").exists());
    assert_eq!(fs::read(out.join("a")).unwrap(), b"1");
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("thesis"), "").unwrap();
    let error = write(&other, &files).unwrap_err().to_string();
    assert!(error.contains("is no release"), "{error}");
    assert!(other.join("thesis").exists());
}

#[test]
fn a_version_without_an_entry_is_no_release() {
    let changelog = "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n- b\n\n## 0.1.0\n\n- a\n";
    assert_eq!(entry(changelog, "0.1.0").unwrap(), "## 0.1.0\n\n- a\n");
    assert_eq!(
        entry(changelog, "0.2.0").unwrap(),
        "## 0.2.0 (2026-12-01)\n\n- b\n"
    );
    for (text, expected) in [
        ("# Changelog\n", "CHANGELOG.md: no section `## 0.1.0`"),
        ("## 0.1.0-rc.1\n\n- a\n", "no section"),
        ("## 0.1.0\n\n## 0.0.9\n\n- a\n", "says nothing"),
    ] {
        let error = entry(text, "0.1.0").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

//! Into the store that the kubelet's images are in, by whatever program this machine has for it.

use evictd_tests::prelude::*;

use super::node::Target;

/// Where containerds listen: k3s' and RKE2's, MicroK8s', the usual one, which may be Docker's beside one of the others.
const SOCKETS: [&str; 3] = [
    "/run/k3s/containerd/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/containerd/containerd.sock",
];
/// containerd's own client under its names: its own, inside k3s, RKE2's, inside MicroK8s.
const CLIENTS: [&[&str]; 4] = [
    &["ctr"],
    &["k3s", "ctr"],
    &["/var/lib/rancher/rke2/bin/ctr"],
    &["microk8s.ctr"],
];
/// Engines whose containers may be nodes: kind, k3d, minikube.
const ENGINES: [&str; 2] = ["docker", "podman"];

/// A way into the node's store of images.
pub struct Importer {
    command: Vec<String>,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// `ctr images import`.
    Ctr,
    /// `podman load`: CRI-O has the same store.
    Podman,
}

impl Importer {
    /// The way to this node; `None` where there is none from here.
    pub fn find(target: &Target) -> Result<Option<Self>> {
        let text = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let is_crio = target.runtime.starts_with("cri-o://");
        ensure!(
            is_crio || target.runtime.starts_with("containerd://"),
            "the node runs {}: images can be imported for containerd and CRI-O only; put them where the node can pull \
             them and give --image and --hog-image",
            target.runtime
        );
        // As the installers of such clusters load images themselves.
        let mut inside = Vec::new();
        if !target.local {
            let name = target.name.as_str();
            let is_there =
                |engine: &&&str| answers(&text(&[engine, "inspect", "--type", "container", name]));
            let Some(engine) = ENGINES.iter().find(is_there) else {
                return Ok(None);
            };
            inside = text(&[engine, "exec", "--interactive", name]);
        }
        if is_crio {
            let command = [inside, text(&["podman"])].concat();
            ensure!(
                answers(&[&command[..], &text(&["--version"])].concat()),
                "the node runs {}, and podman, which loads images for it, is not there; put them where the node can \
                 pull them and give --image and --hog-image",
                target.runtime
            );
            let way = Way::Podman;
            return Ok(Some(Self { command, way }));
        }
        if !target.local {
            return Ok(Some(Self::ctr([inside, text(&["ctr"])].concat())));
        }
        let socket = socket()?;
        let client = CLIENTS
            .iter()
            .find(|client| answers(&[&text(client)[..], &text(&["--version"])].concat()));
        let client = client.with_context(|| {
            format!(
                "containerd listens at {}, but its client is not here: no ctr, k3s or microk8s.ctr",
                socket.display()
            )
        })?;
        let socket = socket.display().to_string();
        let address = text(&["--address", &socket]);
        Ok(Some(Self::ctr([text(client), address].concat())))
    }

    fn ctr(mut command: Vec<String>) -> Self {
        command.extend(["--namespace".to_owned(), "k8s.io".to_owned()]);
        Self {
            command,
            way: Way::Ctr,
        }
    }

    /// Imports an archive, and makes sure that the image has the name that the pods will ask for.
    pub fn import(&self, archive: &Path, reference: &str) -> Result<()> {
        let load = || File::open(archive).with_context(|| archive.display().to_string());
        let listed = match self.way {
            Way::Ctr => {
                let import = ["images", "import", "-"];
                if let Err(refused) = self.run(&import, Some(load()?)) {
                    // Unpacked for ctr's own snapshotter, which may not be the kubelet's and may not work here. The
                    // CRI unpacks by itself what is not unpacked for the one that it uses.
                    let plain = ["images", "import", "--no-unpack", "-"];
                    self.run(&plain, Some(load()?)).map_err(|_| refused)?;
                }
                self.run(&["images", "list", "--quiet"], None)?
            }
            Way::Podman => {
                self.run(&["load"], Some(load()?))?;
                self.run(&["images", "--format", "{{.Repository}}:{{.Tag}}"], None)?
            }
        };
        ensure!(
            listed.lines().any(|line| line.trim() == reference),
            "{} was imported by {:?}, which does not list {reference} now",
            archive.display(),
            self.command
        );
        say!("e2e: imported {reference}");
        Ok(())
    }

    fn run(&self, arguments: &[&str], input: Option<File>) -> Result<String> {
        let Some((program, before)) = self.command.split_first() else {
            bail!("no program");
        };
        let mut command = Command::new(program);
        command.args(before).args(arguments);
        command.stdin(input.map_or_else(Stdio::null, Stdio::from));
        let out = command
            .output()
            .with_context(|| format!("cannot start {program}"))?;
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(
            out.status.success(),
            "{command:?} ended with {}: {}",
            out.status,
            said.trim()
        );
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }
}

/// Whether a command is there and ends well.
fn answers(command: &[String]) -> bool {
    let Some((program, arguments)) = command.split_first() else {
        return false;
    };
    let out = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    out.is_ok_and(|out| out.status.success())
}

fn socket_below(root: &Path) -> Option<PathBuf> {
    let paths = SOCKETS.iter();
    let mut paths = paths.map(|path| root.join(path.trim_start_matches('/')));
    paths.find(|path| path.exists())
}

/// `CONTAINERD_ADDRESS`, as `ctr` itself takes it, or the first that is there.
fn socket() -> Result<PathBuf> {
    if let Some(address) = std::env::var_os("CONTAINERD_ADDRESS") {
        return Ok(address.into());
    }
    let found = socket_below(Path::new("/"));
    found.with_context(|| {
        format!(
            "no containerd at {}; set CONTAINERD_ADDRESS",
            SOCKETS.join(" or ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containerd_of_the_distribution_comes_before_dockers() {
        for distribution in ["run/k3s", "var/snap/microk8s/common/run"] {
            let root = tempfile::tempdir().unwrap();
            let found = || socket_below(root.path());
            assert_eq!(found(), None);
            let make = |path: &str| {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(&path, "").unwrap();
                path
            };
            let dockers = make("run/containerd/containerd.sock");
            assert_eq!(found(), Some(dockers));
            let socket = SOCKETS.iter().find(|s| s[1..].starts_with(distribution));
            let own = make(&socket.unwrap()[1..]);
            assert_eq!(found(), Some(own));
        }
    }
}

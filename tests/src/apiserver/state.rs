//! What the server knows, and what it was asked.

use super::{
    NODE,
    exec::Ran,
    objects::Collection,
    watch::{Watcher, too_old},
};
use crate::prelude::*;

#[derive(Clone, Debug)]
pub struct Seen {
    /// `GET`, ...
    pub method: String,
    /// Without the query.
    pub path: String,
    /// The query, undecoded.
    pub query: String,
    /// `Content-Type`, empty if there is none.
    pub content_type: String,
    /// `Accept`, empty if there is none.
    pub accept: String,
    /// The body; null if there is none.
    pub body: Value,
    pub at: Instant,
}

#[derive(Clone, Copy, Debug)]
pub enum InjectedFault {
    /// Status that comes instead of an answer.
    Status(u16),
    /// The authorizer's refusal.
    NoRight,
    /// Answer of a namespace that is being deleted to what is to be made in it.
    Terminating,
    /// 200 without a byte: a watch that ends at once.
    Empty,
    Slow(Duration),
    /// No answer at all; the connection stays open.
    Hang,
    /// The request is carried out, the answer is lost on its way.
    Lost,
    /// The same, and the connection ends in the middle of the answer.
    Cut,
    /// The connection ends in the same way, and the request is carried out so much later.
    Late(Duration),
}

impl From<u16> for InjectedFault {
    fn from(status: u16) -> Self {
        Self::Status(status)
    }
}

/// Something that goes wrong on some requests.
#[derive(Clone, Debug)]
pub struct Fault {
    /// `DELETE`, ...; empty means all.
    pub method: &'static str,
    /// Part of the path.
    pub path: &'static str,
    pub times: usize,
    pub what: InjectedFault,
}

#[derive(Default)]
pub struct State {
    /// Newest resourceVersion.
    pub version: u64,
    /// Watches from before this version are told that it is too old.
    pub oldest: u64,
    /// Whether the definition of EvictionPolicy is installed.
    pub crd: bool,
    /// Every object by its path; of what is changed here no watcher hears.
    pub objects: BTreeMap<String, Value>,
    /// Names of pods whose eviction a budget refuses.
    pub budgets: BTreeSet<String>,
    /// Rights that self-checks are told no to, as `verb resource` or `verb resource/subresource`.
    pub denied: BTreeSet<String>,
    /// Whether each request is the agent's, which may do what the chart's roles grant, and what it did beyond that.
    pub is_agents_alone: bool,
    pub overstepped: Vec<String>,
    /// The only token that is good, if any is asked for.
    pub token: Option<String>,
    /// The user of each token, as TokenReviews tell, and whether that user may get `/metrics`.
    pub scrapers: BTreeMap<String, (String, bool)>,
    /// Outcomes of commands in containers, by `namespace/pod` and the command's words.
    pub commands: BTreeMap<(String, String), Ran>,
    /// Faults that strike requests, the oldest first.
    pub faults: Vec<Fault>,
    pub requests: Vec<Seen>,
    pub(super) log: Vec<(u64, Collection, String, Value)>,
    pub(super) watchers: Vec<Watcher>,
}

impl State {
    pub(super) fn new() -> Self {
        let node = json!({
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {
                "name": NODE,
                "uid": "a95e6719-ea42-421d-a0d7-e75b081ad7b1",
                "resourceVersion": "6000",
            },
            "spec": {"taints": [{"key": "example.org/kept", "effect": "NoSchedule"}]},
            "status": {"conditions": [
                {"type": "MemoryPressure", "status": "False", "reason": "KubeletHasSufficientMemory"},
                {"type": "Ready", "status": "True", "reason": "KubeletReady"},
            ]},
        });
        let version = json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.0", "gitCommit": "", "gitTreeState": "",
            "goVersion": "", "buildDate": "", "compiler": "", "platform": "",
        });
        Self {
            version: 6000,
            crd: true,
            objects: [
                (Collection::Nodes.path("", NODE), node),
                ("/version".into(), version),
            ]
            .into(),
            ..Self::default()
        }
    }

    /// Tells the watchers of pods how far they are.
    pub fn bookmark(&mut self) {
        self.version += 1;
        let version = self.version.to_string();
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "status": {}});
        self.tell(Collection::Pods, "BOOKMARK", &pod);
    }

    /// Forgets what was before now, and says so inside every watch.
    pub fn expire(&mut self) {
        self.version += 10;
        self.oldest = self.version;
        let line = too_old(0, self.oldest);
        for watcher in self.watchers.drain(..) {
            // A client that has hung up needs no answer.
            let _ = watcher.send(line.clone());
        }
    }

    /// Ends every watch, as the server does when their time is over.
    pub fn end_watches(&mut self) {
        self.watchers.clear();
    }

    pub fn watches(&mut self) -> usize {
        self.watchers.retain(|w| !w.is_gone());
        self.watchers.len()
    }

    /// Has so many requests with this method (empty: any) and this part of the path go wrong.
    pub fn fails(
        &mut self,
        method: &'static str,
        path: &'static str,
        times: usize,
        what: impl Into<InjectedFault>,
    ) {
        self.faults.push(Fault {
            method,
            path,
            times,
            what: what.into(),
        });
    }

    /// Requests of a method whose path contains a text.
    pub fn count(&self, method: &str, path: &str) -> usize {
        self.all(method, path).count()
    }

    /// The requests of a method whose path contains a text.
    pub fn all<'a>(&'a self, method: &'a str, path: &'a str) -> impl Iterator<Item = &'a Seen> {
        self.requests
            .iter()
            .filter(move |r| r.method == method && r.path.contains(path))
    }

    pub(super) fn stamp(&mut self, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
    }

    pub(super) fn tell(&mut self, collection: Collection, kind: &str, object: &Value) {
        self.log
            .push((self.version, collection, kind.to_owned(), object.clone()));
        self.watchers.retain(|w| w.tell(collection, kind, object));
    }

    /// The fault that this request meets, used up by one.
    pub(super) fn meets(&mut self, method: &str, path: &str) -> Option<InjectedFault> {
        let at = self.faults.iter().position(|f| {
            f.times > 0 && (f.method.is_empty() || f.method == method) && path.contains(f.path)
        })?;
        self.faults[at].times -= 1;
        Some(self.faults[at].what)
    }
}

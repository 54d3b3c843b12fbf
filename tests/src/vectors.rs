//! The decisions recorded from a real kubelet (`tests/vectors`), and the command line run against them.

use std::{ffi::OsString, fs, path::PathBuf};

use serde_json::Value;

/// Reads one of the files of `tests/vectors`: a JSON object a line.
pub fn read(name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("vectors")
        .join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let parse = |(number, line)| {
        serde_json::from_str(line)
            .unwrap_or_else(|e| panic!("{}:{}: {e}", path.display(), number + 1))
    };
    text.lines().enumerate().map(parse).collect()
}

#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    pub code: u8,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Standard output of what went well and had nothing to complain of.
    #[track_caller]
    pub fn good(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""));
        self.stdout
    }

    /// The JSON that it is.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.good()).expect("JSON")
    }

    /// Asserts that an input was refused, with one line and no result, and returns that line.
    #[track_caller]
    pub fn refused(self) -> String {
        assert_eq!((self.code, &*self.stdout), (2, ""), "{}", self.stderr);
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.stderr
    }
}

/// Runs `evictd` with these arguments, in this process.
pub fn evictd<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Outcome {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let arguments = [OsString::from("evictd")]
        .into_iter()
        .chain(arguments.into_iter().map(Into::into));
    let code = evictd::cli::run(arguments, &mut stdout, &mut stderr);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Outcome {
        code,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Runs `evictd rank` over pods and a summary, with these arguments.
pub fn rank(pods: impl ToString, summary: impl ToString, arguments: &[&str]) -> Outcome {
    let files = Files::default();
    let pods = files.write("pods.json", pods);
    let summary = files.write("summary.json", summary);
    evictd([&["rank", "--pods", &pods, "--summary", &summary], arguments].concat())
}

/// A directory with files in it that a command can be pointed at.
#[derive(Debug)]
pub struct Files(tempfile::TempDir);

impl Files {
    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, content: impl ToString) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, content.to_string()).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path.to_str().expect("UTF-8").to_owned()
    }
}

impl Default for Files {
    fn default() -> Self {
        Self(tempfile::tempdir().unwrap_or_else(|e| panic!("a temporary directory: {e}")))
    }
}

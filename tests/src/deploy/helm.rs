//! Helm's own engine, without a `helm` binary: PyPI's `helm-python-sdk` carries it, and works offline.

use std::sync::OnceLock;

use super::{RELEASE, chart, fetched};
use crate::{prelude::*, talker::Talker};

const PACKAGE: &str = "helm-python-sdk";
const VERSION: &str = "0.2.2";
/// Reads requests from standard input, writes the answers to standard output.
const SCRIPT: &str = include_str!("helm.py");

/// Helm, installed below `target/`: one process answers all that the tests of this one ask, since its start takes
/// longer than ten answers. It ends with this process, which closes the requests.
pub struct Helm(Mutex<Talker>);

/// One finding of `helm lint`.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// 1: information, 2: warning, 3: error.
    pub severity: u64,
    pub text: String,
}

/// Helm, installed when it is needed for the first time; or why it cannot be had here.
pub fn helm() -> Result<&'static Helm, &'static str> {
    static HELM: OnceLock<Result<Helm, String>> = OnceLock::new();
    let installed = HELM.get_or_init(|| Helm::install().map_err(|e| format!("{e:#}")));
    installed.as_ref().map_err(String::as_str)
}

/// The objects that the chart renders to with these values.
pub fn objects(values: &Value) -> Result<Vec<Value>> {
    let helm = helm().map_err(Error::msg)?;
    super::all_objects(&helm.render(&chart(), values, RELEASE, RELEASE)?)
}

impl Helm {
    fn install() -> Result<Self> {
        let packages = fetched(&format!("{PACKAGE}-{VERSION}"), |partial| {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
                .arg(partial)
                .arg(format!("{PACKAGE}=={VERSION}"))
                .args(["--only-binary", ":all:", "--disable-pip-version-check"]);
            let output = pip.output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            let last = said.trim().lines().last().unwrap_or("nothing was said");
            ensure!(output.status.success(), "pip: {last}");
            Ok(())
        })?;
        let mut python = Command::new("python3");
        let engine = python.args(["-c", SCRIPT]).env("PYTHONPATH", packages);
        Ok(Self(Mutex::new(Talker::start(engine)?)))
    }

    /// `helm lint --strict` of a chart with values.
    pub fn lint(&self, chart: &Path, values: &Value) -> Result<Vec<Finding>> {
        let answer = self.ask(&json!({"lint": chart, "values": values}))?;
        let messages = answer["messages"].as_array().cloned().unwrap_or_default();
        let findings = messages.iter().map(|m| Finding {
            severity: m["severity"].as_u64().unwrap_or(3),
            text: format!("{}: {}", m["path"], m["error"]),
        });
        let errors = answer["errors"].as_array().cloned().unwrap_or_default();
        let errors = errors.iter().map(|e| Finding {
            severity: 3,
            text: e.to_string(),
        });
        Ok(findings.chain(errors).collect())
    }

    /// `helm template`: what each template of the chart renders to, by its path.
    pub fn render(
        &self,
        chart: &Path,
        values: &Value,
        release: &str,
        namespace: &str,
    ) -> Result<BTreeMap<String, String>> {
        let request = json!({
            "render": chart, "values": values, "release": release, "namespace": namespace,
        });
        Ok(serde_json::from_value(self.ask(&request)?)?)
    }

    fn ask(&self, request: &Value) -> Result<Value> {
        let mut engine = self.0.lock();
        engine.tell(&request.to_string())?;
        let mut said: Value = serde_json::from_str(&engine.hear()?)?;
        match said["error"].as_str() {
            Some(error) => bail!("helm: {error}"),
            None => Ok(said["answer"].take()),
        }
    }
}

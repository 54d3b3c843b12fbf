//! Asks the API server for an object.

use evictd_config::{ConfigError, decode::ObjectDecoder};

use super::{
    super::expression::{EvaluationError, Expression, Name},
    expression,
};

/// The object of the cluster that a gate reads. The agent needs the right to `get` it.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectProbe {
    /// `apiVersion`: `group/version`, or the version of the core group.
    pub api_version: String,
    /// `resource`, in the plural.
    pub resource: String,
    /// `name`: an expression.
    pub name: Expression,
    /// `namespace`: an expression; the pod's namespace by default.
    pub namespace: Option<Expression>,
    /// `namespaced`: whether objects of this resource live in namespaces.
    pub namespaced: bool,
}

impl ObjectProbe {
    pub(super) fn read(mut fields: ObjectDecoder, names: &[Name<'_>]) -> Result<Self, ConfigError> {
        let api_version = path_text(&mut fields, "apiVersion", true)?;
        let resource = path_text(&mut fields, "resource", false)?;
        let name = expression(&mut fields, "name", names)?;
        let name = name.ok_or_else(|| fields.missing("name"))?;
        let namespace = expression(&mut fields, "namespace", names)?;
        let namespaced = fields.boolean("namespaced")?.unwrap_or(true);
        fields.deny_unknown_fields()?;
        Ok(Self {
            api_version,
            resource,
            name,
            namespace,
            namespaced,
        })
    }

    /// The object's path at the API server.
    ///
    /// # Errors
    /// An expression without a result, or one that is no name.
    pub fn path(
        &self,
        variables: &[(&str, cel::Value)],
        namespace: &str,
    ) -> Result<String, EvaluationError> {
        let name = self.name.to_text(variables)?;
        let namespace = match &self.namespace {
            Some(expression) => expression.to_text(variables)?,
            None => namespace.to_owned(),
        };
        // Names become part of a URL.
        for part in [&name, &namespace] {
            if !is_path_segment(part) {
                return Err(EvaluationError::new(format!(
                    "{part:?} is no name of an object"
                )));
            }
        }
        let root = if self.api_version.contains('/') {
            "apis"
        } else {
            "api"
        };
        let Self {
            api_version,
            resource,
            ..
        } = self;
        Ok(if self.namespaced {
            format!("/{root}/{api_version}/namespaces/{namespace}/{resource}/{name}")
        } else {
            format!("/{root}/{api_version}/{resource}/{name}")
        })
    }
}

fn path_text(
    fields: &mut ObjectDecoder,
    name: &str,
    with_group: bool,
) -> Result<String, ConfigError> {
    let text = fields.required_text(name)?;
    let parts = text.split('/').count();
    if text.split('/').all(is_path_segment) && (parts == 1 || (with_group && parts == 2)) {
        return Ok(text);
    }
    Err(ConfigError::text(
        fields.path_of(name),
        &text,
        "cannot be part of an object's path",
    ))
}

fn is_path_segment(text: &str) -> bool {
    let good =
        |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.' || b == b':';
    !text.is_empty() && text.len() <= 253 && text != "." && text != ".." && text.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::expression::variables::{POD, pod};

    #[test]
    fn the_path_is_the_objects_and_nothing_else() {
        let read = |object| {
            ObjectProbe::read(
                ObjectDecoder::open("object", object).expect("a map"),
                &[POD],
            )
        };
        let probe = read(json!({
            "apiVersion": "database.arangodb.com/v1",
            "resource": "arangodeployments",
            "name": "pod.labels.deployment",
        }))
        .expect("a probe");
        let mut of = evictd_engine::Pod {
            namespace: "shop".into(),
            ..Default::default()
        };
        of.labels.insert("deployment".into(), "db".into());
        let path = |of: &evictd_engine::Pod| probe.path(&[("pod", pod(of, 0, 0))], &of.namespace);
        assert_eq!(
            path(&of).as_deref(),
            Ok("/apis/database.arangodb.com/v1/namespaces/shop/arangodeployments/db")
        );
        for evil in ["../../secrets/x", "a?b=c", "", "A", ".."] {
            of.labels.insert("deployment".into(), evil.into());
            assert!(path(&of).is_err(), "{evil}");
        }
        let error = read(json!({"apiVersion": "v1", "resource": "pods/exec", "name": "pod.name"}));
        let error = error.expect_err("no subresources").to_string();
        assert_eq!(
            error,
            "object.resource: \"pods/exec\": cannot be part of an object's path"
        );
    }
}

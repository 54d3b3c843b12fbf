//! Evaluates ValidatingAdmissionPolicies as the API server does (KEP-3488): constraints, match conditions, variables,
//! validations in their order; the first that does not hold refuses.

use cel::{Context, Program, Value as Cel, to_value};
use evictd_tests::prelude::*;
use serde_json::Map;

/// One request as admission sees it.
#[derive(Clone, Debug)]
pub struct Request {
    /// `request.userInfo`.
    pub user: Value,
    /// `CREATE`, `UPDATE`, `DELETE`.
    pub operation: &'static str,
    /// API group of the resource.
    pub group: &'static str,
    /// `pods`, `pods/status`.
    pub resource: &'static str,
    /// `request.dryRun`.
    pub dry_run: bool,
    /// What it is to become; null for a DELETE.
    pub object: Value,
    /// What it is; null for a CREATE.
    pub old: Value,
}

/// All policies of the manifests that are bound with `Deny`.
pub struct Policies(Vec<Value>);

impl Policies {
    /// Takes the policies out of the objects; one without a binding is in force nowhere.
    pub fn new(objects: &[Value]) -> Self {
        let of = |kind: &'static str| objects.iter().filter(move |o| o["kind"] == kind);
        let is_bound = |policy: &&Value| {
            of("ValidatingAdmissionPolicyBinding").any(|binding| {
                let actions = binding["spec"]["validationActions"].as_array();
                binding["spec"]["policyName"] == policy["metadata"]["name"]
                    && actions.is_some_and(|a| a.iter().any(|a| a == "Deny"))
                    // A binding that matches everything the policy does.
                    && binding["spec"].get("matchResources").is_none()
            })
        };
        let policies = of("ValidatingAdmissionPolicy").filter(is_bound);
        Self(policies.cloned().collect())
    }

    /// How many are in force.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Every expression there is, compiled.
    pub fn compile(&self) -> usize {
        let mut compiled = 0;
        for policy in &self.0 {
            for (list, field) in [
                ("matchConditions", "expression"),
                ("variables", "expression"),
                ("validations", "expression"),
                ("validations", "messageExpression"),
            ] {
                for item in items(&policy["spec"][list]) {
                    if let Some(source) = item[field].as_str() {
                        Program::compile(source).unwrap_or_else(|e| panic!("{source}: {e}"));
                        compiled += 1;
                    }
                }
            }
        }
        compiled
    }

    /// Fails the test where a request is refused.
    #[track_caller]
    pub fn admits(&self, what: &str, request: &Request) {
        self.admit(request)
            .unwrap_or_else(|e| panic!("{what}: {e}"));
    }

    /// Fails the test where a request is not refused in such words.
    #[track_caller]
    pub fn refuses(&self, what: &str, request: &Request, words: &str) {
        let error = self.admit(request).expect_err(what);
        assert!(error.contains(words), "{what}: {words}: {error}");
    }

    /// `Err` with the message of the first validation that refuses.
    fn admit(&self, request: &Request) -> Result<(), String> {
        let matching = self.0.iter().filter(|p| applies(&p["spec"], request));
        for policy in matching {
            judge(&policy["spec"], request)?;
        }
        Ok(())
    }
}

fn items(list: &Value) -> &[Value] {
    list.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn applies(spec: &Value, request: &Request) -> bool {
    let has =
        |rule: &Value, field: &str, value: &str| items(&rule[field]).iter().any(|v| v == value);
    items(&spec["matchConstraints"]["resourceRules"])
        .iter()
        .any(|rule| {
            has(rule, "apiGroups", request.group)
                && (has(rule, "apiVersions", "v1") || has(rule, "apiVersions", "*"))
                && has(rule, "operations", request.operation)
                && has(rule, "resources", request.resource)
        })
}

fn judge(spec: &Value, request: &Request) -> Result<(), String> {
    assert_eq!(spec["failurePolicy"], "Fail");
    let mut variables = Map::new();
    for condition in items(&spec["matchConditions"]) {
        match evaluate(&condition["expression"], request, &variables)? {
            Cel::Bool(true) => {}
            Cel::Bool(false) => return Ok(()),
            other => return Err(format!("a condition is {other:?}")),
        }
    }
    for variable in items(&spec["variables"]) {
        let value = evaluate(&variable["expression"], request, &variables)?;
        let Cel::String(text) = value else {
            return Err(format!("a variable is {value:?}"));
        };
        let name = variable["name"].as_str().unwrap_or_default();
        variables.insert(name.to_owned(), Value::String(text.to_string()));
    }
    for validation in items(&spec["validations"]) {
        match evaluate(&validation["expression"], request, &variables)? {
            Cel::Bool(true) => continue,
            Cel::Bool(false) => {}
            other => return Err(format!("a validation is {other:?}")),
        }
        if let Some(message) = validation["message"].as_str() {
            return Err(message.to_owned());
        }
        let message = evaluate(&validation["messageExpression"], request, &variables)?;
        return Err(match message {
            Cel::String(text) => text.to_string(),
            other => format!("a message is {other:?}"),
        });
    }
    Ok(())
}

/// An error refuses too: `failurePolicy: Fail`.
fn evaluate(
    expression: &Value,
    request: &Request,
    variables: &Map<String, Value>,
) -> Result<Cel, String> {
    let source = expression.as_str().ok_or("no expression")?;
    let program = Program::compile(source).map_err(|e| format!("{source}: {e}"))?;
    let mut context = Context::default();
    let about = json!({
        "userInfo": request.user, "operation": request.operation, "dryRun": request.dry_run,
    });
    for (name, value) in [
        ("request", &about),
        ("object", &request.object),
        ("oldObject", &request.old),
        ("variables", &Value::Object(variables.clone())),
    ] {
        let value = to_value(value).map_err(|e| e.to_string())?;
        context.add_variable_from_value(name, value);
    }
    program
        .execute(&context)
        .map_err(|e| format!("{source}: {e}"))
}

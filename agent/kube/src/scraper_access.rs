//! Whether the bearer of a token may read the metrics: the API server knows the token (TokenReview) and allows its user
//! `get` on the path (SubjectAccessReview), as for the metrics of Kubernetes' own components.

use http::Method;
use serde_json::{Value, json};

use super::{
    access::{Right, right},
    client::{ApiClient, ApiError, ApiRequest, JSON},
};

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
/// The path that the right is for.
const PATH: &str = "/metrics";

/// The rights that the agent needs everywhere where it asks.
pub const SCRAPER_RIGHTS: [Right; 2] = [
    right(
        "create",
        "authentication.k8s.io",
        "tokenreviews",
        "reviewing the tokens of scrapers",
    ),
    right(
        "create",
        "authorization.k8s.io",
        "subjectaccessreviews",
        "reviewing the rights of scrapers",
    ),
];

/// Verdict of the API server on a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScraperAccess {
    /// The token's bearer may read the metrics.
    Allowed,
    /// The token's bearer is known and may not.
    Forbidden,
    /// The token is not one of this cluster.
    Unauthenticated,
}

/// Asks the API server about a token.
///
/// # Errors
/// No answer, or no right to ask.
pub async fn review(client: &ApiClient, token: &str) -> Result<ScraperAccess, ApiError> {
    let asked = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": { "token": token },
    });
    let known = post(client, TOKEN_REVIEWS, &asked).await?;
    let status = &known["status"];
    if status["authenticated"] != true {
        return Ok(ScraperAccess::Unauthenticated);
    }
    let user = &status["user"];
    let asked = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user["username"],
            "uid": user["uid"],
            "groups": user["groups"],
            "extra": user["extra"],
            "nonResourceAttributes": { "verb": "get", "path": PATH },
        },
    });
    let allowed = post(client, ACCESS_REVIEWS, &asked).await?;
    let status = &allowed["status"];
    Ok(if status["allowed"] == true && status["denied"] != true {
        ScraperAccess::Allowed
    } else {
        ScraperAccess::Forbidden
    })
}

async fn post(client: &ApiClient, path: &str, body: &Value) -> Result<Value, ApiError> {
    let request = ApiRequest::new(Method::POST, path, JSON, body);
    client.call(&request).await
}

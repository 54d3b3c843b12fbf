//! What the chart's roles grant the agent, whichever namespaces and names they grant it on.

use evictd_kube::{
    access::{
        ENDPOINT_RIGHTS, FLEET_ENTRY_RIGHTS, FLEET_RIGHTS, PAUSE_RIGHTS, RIGHTS, Right,
        TENANT_RIGHTS,
    },
    scraper_access::SCRAPER_RIGHTS,
};

use super::state::Seen;

/// What a path names, as roles do.
pub struct Asked<'a> {
    pub group: &'a str,
    /// With the subresource, such as `pods/eviction`.
    pub resource: String,
    /// `None`: all of them.
    pub name: Option<&'a str>,
}

impl<'a> Asked<'a> {
    /// `None` for what is no resource.
    pub fn of(path: &'a str) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let (group, rest) = match parts.as_slice() {
            ["api", "v1", rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return None,
        };
        let rest = match rest {
            ["namespaces", _, rest @ ..] if !rest.is_empty() => rest,
            _ => rest,
        };
        let (resource, name) = match rest {
            // A proxy has a path behind it.
            [resource, name, subresource, ..] => (format!("{resource}/{subresource}"), Some(*name)),
            [resource, name] => ((*resource).to_owned(), Some(*name)),
            [resource] => ((*resource).to_owned(), None),
            [] => return None,
        };
        Some(Self {
            group,
            resource,
            name,
        })
    }
}

/// Whether the agent may do this. What is no resource is open to all, and so is the question for one's own rights.
pub fn is_granted(seen: &Seen) -> bool {
    let Some(Asked {
        group,
        resource,
        name,
    }) = Asked::of(&seen.path)
    else {
        return true;
    };
    let verb = match (&*seen.method, name.is_some()) {
        ("GET", true) => "get",
        ("GET", false) if seen.query.contains("watch=") => "watch",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "delete",
        _ => return false,
    };
    // Of configz; the chart grants it where it is set.
    let from_configz = (verb, &*resource) == ("get", "nodes/proxy");
    let is_it =
        |right: &Right| right.verb == verb && right.group == group && right.resource == resource;
    let all: [&[Right]; 7] = [
        &RIGHTS,
        &ENDPOINT_RIGHTS,
        &PAUSE_RIGHTS,
        &TENANT_RIGHTS,
        &FLEET_RIGHTS,
        &FLEET_ENTRY_RIGHTS,
        &SCRAPER_RIGHTS,
    ];
    from_configz || resource == "selfsubjectaccessreviews" || all.concat().iter().any(is_it)
}

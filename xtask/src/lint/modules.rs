//! Cycles of imports between the modules of a crate.
//!
//! An arrow leads from a module to a sibling when anything below the one names anything below the other, tests left out.
//! Names are followed through re-exports to where they are defined. A child may name what its parent defines.

use syn::{Item, UseTree, visit::Visit};

use crate::prelude::*;

type ModulePath = Vec<String>;

#[derive(Default)]
struct Module {
    items: BTreeSet<String>,
    /// Names that a `use` brings in, with the path as written.
    uses: BTreeMap<String, Vec<String>>,
    /// Paths that are named anywhere outside of tests.
    named: Vec<Vec<String>>,
}

type Modules = BTreeMap<ModulePath, Module>;

/// An arrow between two siblings, with a place where it is drawn.
type Arrows = BTreeMap<String, BTreeMap<String, String>>;

/// The arrows that are part of a cycle, in all crates of the agent.
pub(super) fn cycles(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, source) in super::agent_crates(root)? {
        let mut modules = Modules::new();
        load(&source.join("lib.rs"), Vec::new(), &mut modules)?;
        for arrow in cyclic_arrows(&modules) {
            found.push(format!("{name}: {arrow}, which leads back: a cycle"));
        }
    }
    Ok(found)
}

fn load(file: &Path, path: ModulePath, modules: &mut Modules) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
    let directory = match file.file_name().and_then(|n| n.to_str()) {
        Some("lib.rs" | "mod.rs") => file.parent().map(Path::to_owned).unwrap_or_default(),
        _ => file.with_extension(""),
    };
    take(&parsed.items, &directory, path, modules)
}

fn take(items: &[Item], directory: &Path, path: ModulePath, modules: &mut Modules) -> Result<()> {
    let mut module = Module::default();
    for item in items {
        match item {
            Item::Mod(inner) if is_test(&inner.attrs) => {}
            Item::Mod(inner) => {
                let name = inner.ident.to_string();
                let below: ModulePath = path.iter().cloned().chain([name.clone()]).collect();
                match &inner.content {
                    Some((_, items)) => take(items, &directory.join(&name), below, modules)?,
                    None => load(&file_of(directory, &name), below, modules)?,
                }
            }
            Item::Use(import) => {
                let mut leaves = Vec::new();
                flatten(&import.tree, Vec::new(), &mut leaves);
                let is_private = matches!(import.vis, syn::Visibility::Inherited);
                for (leaf, alias) in leaves {
                    // A re-export is an address, not an import.
                    if is_private {
                        module.named.push(leaf.clone());
                    }
                    module.uses.insert(alias, leaf);
                }
            }
            other => {
                if let Some(name) = name_of(other) {
                    module.items.insert(name);
                }
                let mut paths = Paths::default();
                paths.visit_item(other);
                module.named.extend(paths.0);
            }
        }
    }
    modules.insert(path, module);
    Ok(())
}

fn file_of(directory: &Path, name: &str) -> PathBuf {
    let file = directory.join(name).with_extension("rs");
    if file.exists() {
        file
    } else {
        directory.join(name).join("mod.rs")
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("cfg") && a.parse_args::<syn::Ident>().is_ok_and(|i| i == "test")
    })
}

fn flatten(tree: &UseTree, before: Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    let with = |name: &syn::Ident| {
        before
            .iter()
            .cloned()
            .chain([name.to_string()])
            .collect::<Vec<_>>()
    };
    match tree {
        UseTree::Path(path) => flatten(&path.tree, with(&path.ident), leaves),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before.clone(), leaves);
            }
        }
        UseTree::Name(name) if name.ident == "self" => {
            let last = before.last().cloned().unwrap_or_default();
            leaves.push((before, last));
        }
        UseTree::Name(name) => leaves.push((with(&name.ident), name.ident.to_string())),
        UseTree::Rename(rename) => leaves.push((with(&rename.ident), rename.rename.to_string())),
        UseTree::Glob(_) => leaves.push((before, "*".to_owned())),
    }
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(i) => &i.ident,
        Item::Enum(i) => &i.ident,
        Item::Fn(i) => &i.sig.ident,
        Item::Static(i) => &i.ident,
        Item::Struct(i) => &i.ident,
        Item::Trait(i) => &i.ident,
        Item::Type(i) => &i.ident,
        Item::Union(i) => &i.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Paths of more than one segment.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.0
                .push(path.segments.iter().map(|s| s.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }
}

/// A path as written in a module, from the root of the crate; `None` when it leads out of it.
fn absolute(modules: &Modules, from: &ModulePath, path: &[String]) -> Option<Vec<String>> {
    let first = path.first()?;
    match first.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some(from.iter().chain(&path[1..]).cloned().collect()),
        "super" => {
            let ups = path.iter().take_while(|p| *p == "super").count();
            let base = from.len().checked_sub(ups)?;
            Some(from[..base].iter().chain(&path[ups..]).cloned().collect())
        }
        _ => {
            let module = modules.get(from)?;
            let child: ModulePath = from.iter().cloned().chain([first.clone()]).collect();
            if modules.contains_key(&child) || module.items.contains(first) {
                return Some(from.iter().chain(path).cloned().collect());
            }
            let imported = module.uses.get(first).filter(|p| p.as_slice() != path)?;
            if imported.first() == Some(first) {
                return None;
            }
            let target = absolute(modules, from, imported)?;
            Some(
                target
                    .into_iter()
                    .chain(path[1..].iter().cloned())
                    .collect(),
            )
        }
    }
}

/// The module that defines what a path from the root names.
fn home(modules: &Modules, path: &[String], depth: usize) -> Option<ModulePath> {
    let mut at = ModulePath::new();
    for (index, name) in path.iter().enumerate() {
        let below: ModulePath = at.iter().cloned().chain([name.clone()]).collect();
        if modules.contains_key(&below) {
            at = below;
            continue;
        }
        let module = modules.get(&at)?;
        if module.items.contains(name) {
            return Some(at);
        }
        let written = module.uses.get(name)?;
        let rest = &path[index + 1..];
        let target = absolute(modules, &at, written)?;
        let target: Vec<String> = target.into_iter().chain(rest.iter().cloned()).collect();
        return if depth < 8 {
            home(modules, &target, depth + 1)
        } else {
            None
        };
    }
    Some(at)
}

fn cyclic_arrows(modules: &Modules) -> Vec<String> {
    let mut levels: BTreeMap<ModulePath, Arrows> = BTreeMap::new();
    for (from, module) in modules {
        for path in &module.named {
            let Some(to) = absolute(modules, from, path).and_then(|p| home(modules, &p, 0)) else {
                continue;
            };
            let same = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if same < from.len() && same < to.len() {
                let place = format!("{} names {}", from.join("::"), path.join("::"));
                let arrows = levels.entry(from[..same].to_vec()).or_default();
                arrows
                    .entry(from[same].clone())
                    .or_default()
                    .entry(to[same].clone())
                    .or_insert(place);
            }
        }
    }
    let mut found = Vec::new();
    for arrows in levels.values() {
        for (from, targets) in arrows {
            for (to, place) in targets {
                if leads(arrows, to, from) {
                    found.push(format!("{from} -> {to} ({place})"));
                }
            }
        }
    }
    found
}

fn leads(arrows: &Arrows, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::from([from]);
    let mut next = vec![from];
    while let Some(at) = next.pop() {
        if at == to {
            return true;
        }
        for target in arrows.get(at).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(target) {
                next.push(target);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let mut modules = Modules::new();
        load(&dir.path().join("lib.rs"), Vec::new(), &mut modules).unwrap();
        cyclic_arrows(&modules)
    }

    #[test]
    fn a_cycle_is_found_through_a_re_export_and_named_by_its_arrows() {
        let lib = "pub mod a; pub mod b; pub use a::A;";
        let b = "use crate::A; pub struct B(A);";
        let cycle = arrows(&[
            ("lib.rs", lib),
            ("a.rs", "pub struct A; fn f(_: crate::b::B) {}"),
            ("b.rs", b),
        ]);
        assert_eq!(
            cycle,
            ["a -> b (a names crate::b::B)", "b -> a (b names crate::A)"]
        );
        let none = arrows(&[("lib.rs", lib), ("a.rs", "pub struct A;"), ("b.rs", b)]);
        assert_eq!(none, [""; 0]);
    }

    #[test]
    fn tests_may_look_anywhere() {
        let a = "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }";
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", a),
            ("b.rs", "use crate::a::A; pub struct B(A);"),
        ];
        assert_eq!(arrows(&files), [""; 0]);
    }
}

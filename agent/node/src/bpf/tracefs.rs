//! What the kernel says about its tracepoints, asked before a program trusts the place of a field.

use std::{fs, path::Path};

/// Mount points of tracefs; the second is the old place below debugfs.
const ROOTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Checks that a tracepoint exists and has its fields at the offsets (in bytes) that the programs read.
///
/// # Errors
/// The reason, naming the tracepoint and the field.
pub fn expect(category: &str, name: &str, fields: &[(&str, usize)]) -> Result<(), String> {
    let root = ROOTS.iter().find(|r| Path::new(r).join("events").is_dir());
    let root = root.ok_or("tracefs is not mounted")?;
    let path = Path::new(root)
        .join("events")
        .join(category)
        .join(name)
        .join("format");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    for (field, offset) in fields {
        let found = offset_of(&text, field);
        if found != Some(*offset) {
            return Err(match found {
                Some(at) => format!("{category}:{name} has {field} at byte {at}, not {offset}"),
                None => format!("{category}:{name} has no field {field}"),
            });
        }
    }
    Ok(())
}

/// `\tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;`
fn offset_of(format: &str, field: &str) -> Option<usize> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().split(';').map(str::trim);
        let declared = parts.next()?.strip_prefix("field:")?;
        let name = declared.rsplit([' ', '*']).next()?.split('[').next()?;
        let offset = parts.next()?.strip_prefix("offset:")?;
        (name == field).then(|| offset.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_from_the_kernels_own_form() {
        let format = "name: cgroup_mkdir\nID: 7\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
            \tfield:u64 id;\toffset:16;\tsize:8;\tsigned:0;\n\
            \tfield:u8 fsid[16];\toffset:8;\tsize:16;\tsigned:0;\n\
            \tfield:__data_loc char[] path;\toffset:24;\tsize:4;\tsigned:0;\n";
        assert_eq!(offset_of(format, "id"), Some(16));
        assert_eq!(offset_of(format, "path"), Some(24));
        assert_eq!(offset_of(format, "fsid"), Some(8));
        assert_eq!(offset_of(format, "dev"), None);
    }
}

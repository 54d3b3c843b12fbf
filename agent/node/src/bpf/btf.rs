//! Just enough of the BPF Type Format to answer one question: at which byte of a struct lies a member?
//!
//! Format: the kernel's `Documentation/bpf/btf.rst`. rustc emits no CO-RE relocations, so the agent resolves offsets
//! itself and hands them to the programs as globals.

use std::path::Path;

use evictd_sys::fs::PathError;

/// Path at which the running kernel describes itself.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Why a type or a member could not be resolved.
#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    /// The file is not there: the kernel was built without `CONFIG_DEBUG_INFO_BTF`, or /sys is not mounted.
    #[error(transparent)]
    Read(#[from] PathError),
    /// The bytes are not BTF of this machine's byte order.
    #[error("BTF is malformed at byte {0}")]
    Malformed(usize),
    /// No such type.
    #[error("BTF has no type `{0}`")]
    NoType(String),
    /// The struct has no such member.
    #[error("BTF: `{0}` has no member `{1}`")]
    NoMember(String, String),
}

mod types;

const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
/// Deeper than any kernel type nests: a damaged table may point in a circle.
const MAX_NESTING: usize = 32;

/// A parsed type table. Names are kept as offsets into the string section.
pub struct Btf {
    data: Vec<u8>,
    strings: usize,
    /// Byte offset of each type's record; index 0 is type id 1.
    types: Vec<usize>,
}

impl Btf {
    /// Reads the running kernel's BTF.
    ///
    /// # Errors
    /// The kernel has no BTF, or a table that cannot be parsed; so for all that follow, which fail too where a name is missing.
    pub fn from_sys_fs() -> Result<Self, BtfError> {
        let data = std::fs::read(VMLINUX).map_err(PathError::at(Path::new(VMLINUX)))?;
        Self::parse(data)
    }

    /// Parses raw BTF.
    pub fn parse(data: Vec<u8>) -> Result<Self, BtfError> {
        const MAGIC: u16 = 0xeb9f;
        let magic = data.get(..2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        if magic != Some(MAGIC) {
            return Err(BtfError::Malformed(0));
        }
        let word = |at: usize| word(&data, at);
        let header = word(4)? as usize;
        let (type_off, type_len) = (word(8)? as usize, word(12)? as usize);
        let (str_off, str_len) = (word(16)? as usize, word(20)? as usize);
        let strings = header + str_off;
        if data.len() < strings + str_len {
            return Err(BtfError::Malformed(strings));
        }
        let (mut at, end) = (header + type_off, header + type_off + type_len);
        let mut types = Vec::new();
        while at < end {
            let info = word(at + 4)?;
            types.push(at);
            at += 12 + trailer(info).ok_or(BtfError::Malformed(at))?;
        }
        Ok(Self {
            data,
            strings,
            types,
        })
    }

    /// Byte offset of a member. `path` may go through nested structs: `css.cgroup`; members of anonymous structs and
    /// unions are found as if they were the outer one's, as C does.
    pub fn offset(&self, of: &str, path: &str) -> Result<u32, BtfError> {
        let mut at = self.find(KIND_STRUCT, of)?;
        let mut bits = 0;
        for name in path.split('.') {
            let (offset, member_type) = self
                .member(at, name, MAX_NESTING)?
                .ok_or_else(|| BtfError::NoMember(of.into(), path.into()))?;
            bits = offset.wrapping_add(bits);
            at = self.resolve(member_type)?;
        }
        Ok(bits / 8)
    }

    /// The value of an enumerator.
    pub fn enumerator(&self, of: &str, name: &str) -> Result<u32, BtfError> {
        let at = self.find(KIND_ENUM, of)?;
        let count = self.word(at + 4)? & 0xffff;
        for i in 0..count as usize {
            let entry = at + 12 + 8 * i;
            if self.string(self.word(entry)?) == name.as_bytes() {
                return self.word(entry + 4);
            }
        }
        Err(BtfError::NoMember(of.into(), name.into()))
    }

    fn find(&self, kind: u32, name: &str) -> Result<usize, BtfError> {
        let found = self.types.iter().copied().find(|&at| {
            self.word(at + 4).is_ok_and(|info| self::kind(info) == kind)
                && self
                    .word(at)
                    .is_ok_and(|n| self.string(n) == name.as_bytes())
        });
        found.ok_or_else(|| BtfError::NoType(name.into()))
    }

    /// Bit offset and type of a member, looking through anonymous members.
    fn member(
        &self,
        at: usize,
        name: &str,
        nesting: usize,
    ) -> Result<Option<(u32, u32)>, BtfError> {
        let info = self.word(at + 4)?;
        if nesting == 0 || !matches!(kind(info), KIND_STRUCT | KIND_UNION) {
            return Ok(None);
        }
        let bitfields = info >> 31 == 1;
        for i in 0..(info & 0xffff) as usize {
            let entry = at + 12 + 12 * i;
            let (label, type_id) = (self.word(entry)?, self.word(entry + 4)?);
            let offset = self.word(entry + 8)?;
            // With bit fields the upper byte is the field's size.
            let offset = if bitfields {
                offset & 0xff_ffff
            } else {
                offset
            };
            let label = self.string(label);
            if label == name.as_bytes() {
                return Ok(Some((offset, type_id)));
            }
            if label.is_empty()
                && let Some((inner, found)) =
                    self.member(self.resolve(type_id)?, name, nesting - 1)?
            {
                return Ok(Some((offset.wrapping_add(inner), found)));
            }
        }
        Ok(None)
    }

    /// Follows typedefs and qualifiers.
    fn resolve(&self, type_id: u32) -> Result<usize, BtfError> {
        const TYPEDEF_VOLATILE_CONST_RESTRICT_TAG: [u32; 5] = [8, 9, 10, 11, 18];
        let mut id = type_id;
        for _ in 0..MAX_NESTING {
            let at = (id as usize)
                .checked_sub(1)
                .and_then(|i| self.types.get(i).copied())
                .ok_or(BtfError::Malformed(id as usize))?;
            if !TYPEDEF_VOLATILE_CONST_RESTRICT_TAG.contains(&kind(self.word(at + 4)?)) {
                return Ok(at);
            }
            id = self.word(at + 8)?;
        }
        Err(BtfError::Malformed(id as usize))
    }

    fn word(&self, at: usize) -> Result<u32, BtfError> {
        word(&self.data, at)
    }

    fn string(&self, offset: u32) -> &[u8] {
        let tail = self
            .data
            .get(self.strings + offset as usize..)
            .unwrap_or_default();
        tail.split(|b| *b == 0).next().unwrap_or_default()
    }
}

fn word(data: &[u8], at: usize) -> Result<u32, BtfError> {
    data.get(at..at + 4)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_ne_bytes)
        .ok_or(BtfError::Malformed(at))
}

fn kind(info: u32) -> u32 {
    (info >> 24) & 0x1f
}

/// Bytes that follow a type's 12-byte head; `None` for a kind this reader does not know.
fn trailer(info: u32) -> Option<usize> {
    let count = (info & 0xffff) as usize;
    Some(match kind(info) {
        // INT, VAR, DECL_TAG
        1 | 14 | 17 => 4,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        2 | 7 | 8 | 9 | 10 | 11 | 12 | 16 | 18 => 0,
        // ARRAY
        3 => 12,
        // STRUCT, UNION, DATASEC, ENUM64
        4 | 5 | 15 | 19 => 12 * count,
        // ENUM, FUNC_PROTO
        6 | 13 => 8 * count,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `struct outer { int a; struct { int b; int c; }; }` after the C rules, assembled by hand.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0c\0color\0RED\0f\0";
        let at = |s: &str| {
            let text = format!("\0{s}\0");
            strings
                .windows(text.len())
                .position(|w| w == text.as_bytes())
                .unwrap() as u32
                + 1
        };
        let info = |kind: u32, count: u32| (kind << 24) | count;
        let types: Vec<u32> = [
            vec![at("int"), info(1, 0), 4, 32],
            vec![0, info(4, 2), 8, at("b"), 1, 0, at("c"), 1, 32],
            vec![at("outer"), info(4, 2), 12, at("a"), 1, 0, 0, 2, 32],
            vec![at("color"), info(6, 1), 4, at("RED"), 7],
            vec![at("f"), info(12, 0), 1],
        ]
        .concat();
        let type_len = (types.len() * 4) as u32;
        let header: Vec<u32> = vec![0, 24, 0, type_len, type_len, strings.len() as u32];
        let mut data: Vec<u8> = header
            .iter()
            .chain(&types)
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        data[..2].copy_from_slice(&0xeb9f_u16.to_ne_bytes());
        data.extend_from_slice(strings);
        data
    }

    #[test]
    fn members_of_anonymous_structs_are_found() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.offset("outer", "a").unwrap(), 0);
        assert_eq!(btf.offset("outer", "c").unwrap(), 8);
        assert_eq!(btf.enumerator("color", "RED").unwrap(), 7);
    }

    #[test]
    fn what_is_missing_is_named() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(
            btf.offset("inner", "a").unwrap_err().to_string(),
            "BTF has no type `inner`"
        );
        assert_eq!(
            btf.offset("outer", "z").unwrap_err().to_string(),
            "BTF: `outer` has no member `z`"
        );
    }

    #[test]
    fn damaged_input_is_an_error_and_no_panic() {
        let good = sample();
        for length in 0..good.len() {
            let _ = Btf::parse(good[..length].to_vec()).map(|b| b.offset("outer", "c"));
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0xff;
            let _ = Btf::parse(bad).map(|b| b.offset("outer", "c"));
        }
    }
}

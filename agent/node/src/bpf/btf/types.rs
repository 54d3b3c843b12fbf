//! Questions about types beyond the place of a member.

use super::{Btf, BtfError, KIND_STRUCT, KIND_TYPEDEF, MAX_NESTING, kind};

const KIND_POINTER: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_FUNC_PROTO: u32 = 13;

impl Btf {
    /// Size of a struct in bytes.
    ///
    /// # Errors
    /// No such struct.
    pub fn size(&self, of: &str) -> Result<u32, BtfError> {
        self.word(self.find(KIND_STRUCT, of)? + 8)
    }

    /// The name of the struct that an array member is made of; `None` when it is not such an array.
    pub fn element(&self, of: &str, member: &str) -> Option<String> {
        let at = self.find(KIND_STRUCT, of).ok()?;
        let (_, member_type) = self.member(at, member, MAX_NESTING).ok()??;
        let array = self.resolve(member_type).ok()?;
        if kind(self.word(array + 4).ok()?) != KIND_ARRAY {
            return None;
        }
        let element = self.resolve(self.word(array + 12).ok()?).ok()?;
        let name = self.string(self.word(element).ok()?);
        Some(String::from_utf8_lossy(name).into_owned())
    }

    /// Whether the argument of a tracepoint, counted from 0, is a pointer: only then can a typed program follow it.
    /// `None`: there is no such tracepoint, or it has fewer arguments.
    pub fn tracepoint_argument_is_pointer(&self, name: &str, argument: usize) -> Option<bool> {
        let at = self.find(KIND_TYPEDEF, &format!("btf_trace_{name}")).ok()?;
        // typedef -> pointer -> function type
        let pointer = self.resolve(self.word(at + 8).ok()?).ok()?;
        let function = self.resolve(self.word(pointer + 8).ok()?).ok()?;
        let info = self.word(function + 4).ok()?;
        // The first parameter is the probe's own.
        let parameter = argument + 1;
        if kind(info) != KIND_FUNC_PROTO || parameter >= (info & 0xffff) as usize {
            return None;
        }
        let argument = self.word(function + 12 + 8 * parameter + 4).ok()?;
        // 0 is void.
        let is = |id: u32| Some(kind(self.word(self.resolve(id).ok()? + 4).ok()?) == KIND_POINTER);
        is(argument)
    }
}

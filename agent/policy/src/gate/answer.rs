//! Parses an answer as JSON, with limits: a tenant may control the server, or the object.

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Deepest nesting of lists and maps. The interpreter of expressions uses stack for each level.
const MAX_DEPTH: u32 = 32;
/// Most values, also inside lists and maps: in memory a value can be a hundred times as large as in the body.
const MAX_VALUES: u32 = 8192;

/// An answer as JSON, or as a string if it is not JSON.
///
/// # Errors
/// The limit that the answer exceeds.
pub fn parse_answer(bytes: &[u8]) -> Result<Value, &'static str> {
    let limits = Limits::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = limits.seed(0).deserialize(&mut deserializer);
    match (
        parsed.and_then(|value| deserializer.end().map(|()| value)),
        limits.exceeded.get(),
    ) {
        (_, Some(reason)) => Err(reason),
        (Ok(value), None) => Ok(value),
        (Err(_), None) => Ok(String::from_utf8_lossy(bytes).into_owned().into()),
    }
}

#[derive(Default)]
struct Limits {
    values: Cell<u32>,
    exceeded: Cell<Option<&'static str>>,
}

impl Limits {
    fn seed(&self, depth: u32) -> Seed<'_> {
        Seed {
            limits: self,
            depth,
        }
    }
}

#[derive(Clone, Copy)]
struct Seed<'a> {
    limits: &'a Limits,
    depth: u32,
}

impl Seed<'_> {
    fn exceeded<E: serde::de::Error>(self, reason: &'static str) -> E {
        self.limits.exceeded.set(Some(reason));
        E::custom(reason)
    }

    fn below<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth == MAX_DEPTH {
            return Err(self.exceeded("the answer is nested too deep: more than 32 levels"));
        }
        let depth = self.depth + 1;
        Ok(Self { depth, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let values = self.limits.values.get() + 1;
        self.limits.values.set(values);
        if values > MAX_VALUES {
            return Err(self.exceeded("the answer has more than 8192 values"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(below)? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let below = self.below()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.insert(key, entries.next_value_seed(below)?).is_some() {
                return Err(A::Error::custom("the same key twice"));
            }
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_what_serde_json_reads_within_limits() {
        let value = json!({"a": [1, -2, 1.5, "x\n", null, true, {"b": {}}], "c": []});
        assert_eq!(parse_answer(value.to_string().as_bytes()), Ok(value));
        for text in ["", "yes", "{\"a\": 1} x", "{\"a\": 1, \"a\": 2}", "[1,"] {
            assert_eq!(parse_answer(text.as_bytes()), Ok(text.into()), "no JSON");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(parse_answer(nested(32).as_bytes()).is_ok_and(|v| v.is_array()));
        let error = parse_answer(nested(33).as_bytes());
        assert!(error.is_err_and(|e| e.contains("32 levels")));
        assert!(parse_answer(nested(1 << 19).as_bytes()).is_err());
        let many = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert!(parse_answer(many(8191).as_bytes()).is_ok_and(|v| v.is_array()));
        assert!(parse_answer(many(8192).as_bytes()).is_err_and(|e| e.contains("8192 values")));
    }
}

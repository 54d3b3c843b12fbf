//! Takes a parsed document apart field by field, so that every error names the field, the value and the reason, and
//! unknown fields are found.

use std::{
    collections::BTreeMap, net::SocketAddr, ops::RangeInclusive, path::PathBuf, str::FromStr,
    time::Duration,
};

use serde_json::{Map, Value};

use super::ConfigError;

/// The fields of one object that have not been taken yet.
pub struct ObjectDecoder {
    /// The path of the object, empty for the document itself.
    path: String,
    map: Map<String, Value>,
}

impl ObjectDecoder {
    /// Opens an object; an absent or empty document is an object without fields.
    ///
    /// # Errors
    /// [`ConfigError`] names the path of the field, its value and what is allowed there; so for all that follow.
    pub fn open(path: &str, value: Value) -> Result<Self, ConfigError> {
        match value {
            Value::Object(map) => Ok(Self {
                path: path.to_owned(),
                map,
            }),
            Value::Null => Ok(Self {
                path: path.to_owned(),
                map: Map::new(),
            }),
            other if path.is_empty() => Err(ConfigError::value(
                "configuration",
                &other,
                "must be a map of fields",
            )),
            other => Err(ConfigError::value(path, &other, "must be a map of fields")),
        }
    }

    /// The full path of a field of this object.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// Takes a field as it is; null counts as absent.
    pub fn optional(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        super::reference::note(self.path_of(name));
        self.map.remove(name).filter(|value| !value.is_null())
    }

    /// Whether a field stands here under its former name; under both names is an error.
    pub fn has_former(&mut self, former: &str, name: &str) -> Result<bool, ConfigError> {
        // Null counts as absent.
        self.map
            .retain(|key, value| !value.is_null() || (key != former && key != name));
        match (self.map.get(former), self.map.get(name)) {
            (Some(value), Some(_)) => {
                let reason = format!("is the former name of {name}, which is set too");
                Err(ConfigError::value(self.path_of(former), value, reason))
            }
            (found, _) => Ok(found.is_some()),
        }
    }

    /// Takes a field that is an object.
    pub fn object(&mut self, name: &str) -> Result<Option<Self>, ConfigError> {
        let path = self.path_of(name);
        self.optional(name)
            .map(|value| Self::open(&path, value))
            .transpose()
    }

    /// Takes a field that is an object and must be there.
    pub fn required_object(&mut self, name: &str) -> Result<Self, ConfigError> {
        self.object(name)?.ok_or_else(|| self.missing(name))
    }

    /// Takes a field that is an object all of whose fields `take` knows.
    pub fn section<T>(
        &mut self,
        name: &str,
        take: impl FnOnce(&mut Self) -> Result<T, ConfigError>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(mut section) = self.object(name)? else {
            return Ok(None);
        };
        let taken = take(&mut section)?;
        section.deny_unknown_fields()?;
        Ok(Some(taken))
    }

    /// The error for a field that must be there.
    pub fn missing(&self, name: &str) -> ConfigError {
        ConfigError::value(self.path_of(name), &Value::Null, "is missing")
    }

    /// Takes a field that is true or false.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.typed(name, "must be true or false", |value| value.as_bool())
    }

    /// Takes a field that is a whole number of 32 bits, as Kubernetes' `int32`.
    pub fn int32(&mut self, name: &str) -> Result<Option<i32>, ConfigError> {
        self.typed(
            name,
            "must be a whole number between -2147483648 and 2147483647",
            |value| value.as_i64().and_then(|number| i32::try_from(number).ok()),
        )
    }

    /// Takes a field that is a whole number in a range.
    pub fn whole<T: TryFrom<u64>>(
        &mut self,
        name: &str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<T>, ConfigError> {
        let (least, most) = (range.start(), range.end());
        let reason = format!("must be a whole number between {least} and {most}");
        self.typed(name, &reason, |value| {
            let number = value.as_u64().filter(|number| range.contains(number))?;
            T::try_from(number).ok()
        })
    }

    /// Takes a field that is a whole number of seconds.
    pub fn seconds(&mut self, name: &str) -> Result<Option<Duration>, ConfigError> {
        self.typed(
            name,
            "must be a whole number of seconds, not negative",
            |value| value.as_u64().map(Duration::from_secs),
        )
    }

    /// Takes a field that is a text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ConfigError> {
        self.typed(name, "must be a string", |value| {
            value.as_str().map(str::to_owned)
        })
    }

    /// Takes a field that is a list of texts.
    pub fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ConfigError> {
        self.typed(name, "must be a list of strings", |value| {
            value
                .as_array()?
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect()
        })
    }

    /// Takes a field that is a text and must be there.
    pub fn required_text(&mut self, name: &str) -> Result<String, ConfigError> {
        let text = self.text(name)?.unwrap_or_default();
        if text.is_empty() {
            return Err(self.missing(name));
        }
        Ok(text)
    }

    /// Takes a field that is a list; an absent one is empty.
    pub fn list(&mut self, name: &str) -> Result<Vec<Value>, ConfigError> {
        let list = self.typed(name, "must be a list", |value| value.as_array().cloned())?;
        Ok(list.unwrap_or_default())
    }

    /// Takes a field that is a map of texts; an absent one is empty.
    pub fn text_map(&mut self, name: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let map = self.typed(name, "must be a map of strings", |value| {
            let map = value.as_object()?.iter();
            map.map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
                .collect()
        })?;
        Ok(map.unwrap_or_default())
    }

    /// Takes a field that is a duration such as `90s`.
    pub fn duration(&mut self, name: &str) -> Result<Option<Duration>, ConfigError> {
        self.text_as(name, super::duration::parse)
    }

    /// Takes a field that is the path of a file and must be absolute: the daemon's working directory means nothing.
    pub fn absolute_path(&mut self, name: &str) -> Result<Option<PathBuf>, ConfigError> {
        self.text_as(name, |text| {
            let path = PathBuf::from(text);
            let is_absolute = path.is_absolute();
            is_absolute
                .then_some(path)
                .ok_or("must be an absolute path")
        })
    }

    /// Takes a field that is an IP address with a port.
    pub fn socket_address(&mut self, name: &str) -> Result<Option<SocketAddr>, ConfigError> {
        let reason = "must be an IP address and a port such as 127.0.0.1:9393";
        self.text_as(name, |text| text.parse().map_err(|_| reason))
    }

    /// Takes a field that is a text, and parses it.
    pub fn parsed<T: FromStr>(&mut self, name: &str) -> Result<Option<T>, ConfigError>
    where
        T::Err: ToString,
    {
        self.text_as(name, T::from_str)
    }

    /// Takes a field that is a text, and reads it with `parse`.
    pub fn text_as<T, E: ToString>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let parsed = parse(&text).map(Some);
        parsed.map_err(|e| ConfigError::text(self.path_of(name), &text, e))
    }

    /// Takes a field that is one of a few words.
    pub fn choice<T: Copy>(
        &mut self,
        name: &str,
        choices: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        self.text_as(name, |text| {
            let chosen = choices.iter().find(|(word, _)| *word == text);
            chosen.map(|(_, choice)| *choice).ok_or_else(|| {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                format!("must be one of {}", words.join(", "))
            })
        })
    }

    /// Ends the decoding: a field that is left is unknown.
    pub fn deny_unknown_fields(self) -> Result<(), ConfigError> {
        self.deny_fields_beside(&[])
    }

    /// Refuses fields that are left, but for those of these names.
    pub fn deny_fields_beside(&self, names: &[&str]) -> Result<(), ConfigError> {
        let mut left = self.map.keys();
        match left.find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(ConfigError::UnknownField {
                field: self.path_of(name),
            }),
            None => Ok(()),
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        reason: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.optional(name) else {
            return Ok(None);
        };
        match read(&value) {
            Some(typed) => Ok(Some(typed)),
            None => Err(ConfigError::value(self.path_of(name), &value, reason)),
        }
    }
}

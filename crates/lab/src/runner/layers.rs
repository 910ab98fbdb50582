use std::collections::BTreeMap;

use crate::run::{Counters, LayerHost};
use crate::subject::LayerSeen;

/// Counts of the I/O on the layers' files within a span. A layer counts at the height it has at the time of a look. I/O
/// between a layer's last look and its end is not counted.
#[derive(Debug, Default)]
pub(super) struct Layers {
    /// Counters by name, at the last look.
    before: BTreeMap<String, Counters>,
    /// Counters by height, since the last `take`.
    within: BTreeMap<u32, Counters>,
}

impl Layers {
    pub(super) fn add(&mut self, seen: Vec<LayerSeen>) {
        // Counts from before the first look do not belong to the run.
        let is_first = self.before.is_empty();
        for layer in seen.iter().filter(|_| !is_first) {
            let before = self.before.get(&layer.name).copied().unwrap_or_default();
            // None: the layer was reopened.
            if let Some(part) = layer.host.since(&before) {
                *self.within.entry(layer.height).or_default() += part;
            }
        }
        self.before = seen.into_iter().map(|layer| (layer.name, layer.host)).collect();
    }

    /// Returns the counts since the last call.
    pub(super) fn take(&mut self) -> Vec<LayerHost> {
        std::mem::take(&mut self.within).into_iter().map(|(layer, host)| LayerHost { layer, host }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(name: &str, height: u32, reads: u64) -> LayerSeen {
        LayerSeen { name: name.into(), height, host: Counters { reads, ..Counters::default() } }
    }

    #[test]
    fn layers_come_and_go_and_move_down() {
        let mut layers = Layers::default();
        layers.add(vec![seen("base", 0, 100)]);
        layers.add(vec![seen("base", 0, 101), seen("first", 1, 5)]);
        layers.add(vec![seen("base", 0, 101), seen("first", 1, 7), seen("second", 2, 1)]);
        let reads =
            |layers: &mut Layers| layers.take().iter().map(|l| (l.layer, l.host.reads)).collect::<Vec<_>>();
        assert_eq!(reads(&mut layers), [(0, 1), (1, 7), (2, 1)]);
        layers.add(vec![seen("base", 0, 111), seen("second", 1, 4)]);
        assert_eq!(reads(&mut layers), [(0, 10), (1, 3)]);
        layers.add(vec![seen("base", 0, 2), seen("second", 1, 4)]);
        assert_eq!(reads(&mut layers), [(1, 0)], "a file that was opened again counts from then on");
    }
}

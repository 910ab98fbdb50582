//! Arbitrary bytes as messages and as a guest's ring: no panic, no endless loop, and the same result twice.

use export::vhost_user::replay;
use proptest::prelude::*;

proptest! {
    #[test]
    fn messages_of_any_bytes_are_decoded_or_refused(stream in prop::collection::vec(any::<u8>(), 0..600)) {
        prop_assert_eq!(replay::messages(&stream), replay::messages(&stream));
    }

    #[test]
    fn messages_with_valid_headers_are_decoded_or_refused(
        kind in 0u32..45,
        files in 0u8..9,
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut stream = vec![files];
        stream.extend([kind, 1, payload.len() as u32].iter().flat_map(|n| n.to_le_bytes()));
        stream.extend(&payload);
        prop_assert_eq!(replay::messages(&stream).len(), 1);
    }

    #[test]
    fn rings_of_any_bytes_end(
        descriptors in prop::collection::vec((0u64..70_000, 0u32..5000, 0u16..8, 0u16..20), 16),
        heads in prop::collection::vec(0u16..18, 16),
        index in 0u16..20,
        table in prop::collection::vec(any::<u8>(), 0..2048),
    ) {
        let mut memory = Vec::new();
        for (address, len, flags, next) in descriptors {
            memory.extend(address.to_le_bytes());
            memory.extend(len.to_le_bytes());
            memory.extend(flags.to_le_bytes());
            memory.extend(next.to_le_bytes());
        }
        memory.extend([0, 0]);
        memory.extend(index.to_le_bytes());
        memory.extend(heads.iter().flat_map(|head| head.to_le_bytes()));
        memory.extend(table);
        prop_assert_eq!(replay::ring(&memory), replay::ring(&memory));
    }
}

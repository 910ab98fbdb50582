//! A writer of OVAs, for tests alone.

use blk::SECTOR;

/// Returns a header of ustar, with its checksum.
pub(crate) fn header(name: &str, size: u64, kind: u8) -> Vec<u8> {
    let mut block = vec![0; SECTOR as usize];
    put(&mut block, 0, name.as_bytes());
    put(&mut block, 100, b"0000644\0");
    put(&mut block, 124, format!("{size:011o}\0").as_bytes());
    put(&mut block, 156, &[kind]);
    put(&mut block, 257, b"ustar\x0000");
    sum(&mut block);
    block
}

/// Writes the checksum of a header.
pub(crate) fn sum(block: &mut [u8]) {
    put(block, 148, b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    put(block, 148, format!("{sum:06o}\0 ").as_bytes());
}

pub(crate) fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    block[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Returns the content, padded to blocks.
pub(crate) fn padded(content: &[u8]) -> Vec<u8> {
    let mut padded = content.to_vec();
    padded.resize(content.len().next_multiple_of(SECTOR as usize), 0);
    padded
}

/// Returns an archive with the end blocks.
pub(crate) fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
    let member = |(name, content): &(&str, &[u8])| {
        [header(name, content.len() as u64, b'0'), padded(content)].concat()
    };
    let mut bytes: Vec<u8> = members.iter().flat_map(member).collect();
    bytes.resize(bytes.len() + 2 * SECTOR as usize, 0);
    bytes
}

/// The descriptor of a VM with four disks: on SATA, on two SCSI controllers, and an empty one on IDE.
pub(crate) fn descriptor(sizes: [u64; 3], capacity_bytes: u64) -> String {
    let [first, second, third] = sizes;
    format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
  xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData">
  <References>
    <File ovf:href="web%20server-disk1.vmdk" ovf:id="file1" ovf:size="{first}"/>
    <File ovf:href="web-disk2.vmdk" ovf:id="file2" ovf:size="{second}"/>
    <File ovf:href="web-disk3.vmdk" ovf:id="file3" ovf:size="{third}"/>
  </References>
  <DiskSection>
    <Info>Virtual disks</Info>
    <Disk ovf:capacity="{capacity_bytes}" ovf:diskId="sata" ovf:fileRef="file1" ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
    <Disk ovf:capacity="{capacity_bytes}" ovf:capacityAllocationUnits="byte" ovf:diskId="second" ovf:fileRef="file2"/>
    <Disk ovf:capacity="1" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="first" ovf:fileRef="file3"/>
    <Disk ovf:capacity="16" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="empty"/>
  </DiskSection>
  <VirtualSystem ovf:id="vm-42">
    <Info>A VM</Info>
    <Name>web server</Name>
    <VirtualHardwareSection>
      <Item><rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType></Item>
      <Item><rasd:Address>0</rasd:Address><rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceSubType>vmware.sata.ahci</rasd:ResourceSubType><rasd:ResourceType>20</rasd:ResourceType></Item>
      <Item><rasd:Address>1</rasd:Address><rasd:InstanceID>3</rasd:InstanceID><rasd:ResourceSubType>lsilogic</rasd:ResourceSubType><rasd:ResourceType>6</rasd:ResourceType></Item>
      <Item><rasd:Address>0</rasd:Address><rasd:InstanceID>4</rasd:InstanceID><rasd:ResourceSubType>VirtualSCSI</rasd:ResourceSubType><rasd:ResourceType>6</rasd:ResourceType></Item>
      <Item><rasd:InstanceID>5</rasd:InstanceID><rasd:ResourceType>5</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>3</rasd:AddressOnParent><rasd:HostResource>ovf:/disk/sata</rasd:HostResource><rasd:InstanceID>6</rasd:InstanceID><rasd:Parent>2</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:HostResource>ovf:/disk/second</rasd:HostResource><rasd:InstanceID>7</rasd:InstanceID><rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>10</rasd:AddressOnParent><rasd:HostResource>/disk/first</rasd:HostResource><rasd:InstanceID>8</rasd:InstanceID><rasd:Parent>4</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
      <Item><rasd:AddressOnParent>0</rasd:AddressOnParent><rasd:HostResource>ovf:/disk/empty</rasd:HostResource><rasd:InstanceID>9</rasd:InstanceID><rasd:Parent>5</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>
    </VirtualHardwareSection>
  </VirtualSystem>
</Envelope>
"#
    )
}

// Private endpoints in one subnet, and the private DNS zones in which their names are found.

param location string
param tags object
param subnetId string

@description('The resource, the part of it, and the private DNS zone of each endpoint.')
param targets { id: string, group: string, zone: string }[]

@description('Resource ids of existing zones, by name.')
param zoneIds object

var missingZones = filter(union(map(targets, each => each.zone), []), zone => !contains(zoneIds, zone))
var networkId = join(take(split(subnetId, '/'), 9), '/')

resource newZones 'Microsoft.Network/privateDnsZones@2024-06-01' = [
  for zone in missingZones: {
    name: zone
    location: 'global'
    tags: tags
  }
]

resource links 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [
  for (zone, i) in missingZones: {
    parent: newZones[i]
    name: uniqueString(networkId)
    location: 'global'
    tags: tags
    properties: {
      registrationEnabled: false
      virtualNetwork: { id: networkId }
    }
  }
]

resource endpoints 'Microsoft.Network/privateEndpoints@2024-07-01' = [
  for each in targets: {
    name: '${last(split(each.id, '/'))}-${each.group}'
    location: location
    tags: tags
    properties: {
      subnet: { id: subnetId }
      privateLinkServiceConnections: [
        {
          name: each.group
          properties: { privateLinkServiceId: each.id, groupIds: [each.group] }
        }
      ]
    }
  }
]

resource names 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-07-01' = [
  for (each, i) in targets: {
    parent: endpoints[i]
    name: 'default'
    properties: {
      privateDnsZoneConfigs: [
        {
          name: each.group
          properties: {
            privateDnsZoneId: zoneIds[?each.zone] ?? resourceId('Microsoft.Network/privateDnsZones', each.zone)
          }
        }
      ]
    }
    dependsOn: [links]
  }
]

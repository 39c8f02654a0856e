// Entry point of `azd up`: creates a resource group and deploys main.bicep into it.
// azd takes each parameter from an environment variable, which is text: see azd.parameters.json.
targetScope = 'subscription'

param environmentName string
param location string

@description('Resource ids of the App Service Plans to scale, separated by commas. The settings refer to the first one.')
param planIds string

param topic string
param subscription string
param serviceBusNamespaceId string = ''
param settings object = {}

@description('Secret settings. Those that are empty are left out.')
@secure()
param secretSettings object = {}

@allowed(['true', 'false'])
param eventHub string = 'false'

@allowed(['true', 'false'])
param eventHubSharedAccess string = 'false'

@description('Email addresses that receive alerts, separated by commas.')
param alertEmails string = ''

@description('Resource ids of action groups that receive alerts, separated by commas.')
param actionGroupIds string = ''

@allowed(['3.11'])
param pythonVersion string = '3.11'
@allowed(['512', '2048', '4096'])
param instanceMemoryMB string = '2048'
param maximumInstanceCount string = '40'

@description('Always-ready instances, such as function:scaler=1,http=1.')
param alwaysReady string = ''

@allowed(['Recreate', 'RollingUpdate'])
param siteUpdateStrategy string = 'Recreate'

@allowed(['true', 'false'])
param zoneRedundant string = 'false'

param storageSku string = 'Standard_ZRS'
param subnetId string = ''
param privateEndpointSubnetId string = ''

@description('Resource ids of private DNS zones, separated by commas.')
param privateDnsZoneIds string = ''

@allowed(['Enabled', 'Disabled'])
param publicNetworkAccess string = 'Enabled'

param workspaceId string = ''
param identityId string = ''

@allowed(['DataOwner', 'MonitoringReader'])
param countsRole string = 'DataOwner'

@description('Resource ids of App Service Environments, separated by commas.')
param appServiceEnvironmentIds string = ''

@allowed(['true', 'false'])
param diagnosticLogs string = 'false'

param name string = 'autoscaler'

@description('Tags, such as team=shop,stage=test.')
param tags string = ''

var givenTags = toObject(
  empty(tags) ? [] : split(tags, ','),
  each => split(each, '=')[0],
  each => substring(each, indexOf(each, '=') + 1)
)
var allTags = union(givenTags, { 'azd-env-name': environmentName })

resource group 'Microsoft.Resources/resourceGroups@2025-03-01' = {
  name: 'rg-${environmentName}'
  location: location
  tags: allTags
}

module autoscaler 'main.bicep' = {
  name: 'autoscaler'
  scope: group
  params: {
    name: name
    location: location
    planIds: split(planIds, ',')
    topic: topic
    subscription: subscription
    serviceBusNamespaceId: serviceBusNamespaceId
    settings: settings
    secretSettings: toObject(
      filter(items(secretSettings), each => !empty(each.value)),
      each => each.key,
      each => each.value
    )
    eventHub: bool(eventHub)
    eventHubSharedAccess: bool(eventHubSharedAccess)
    alertEmails: empty(alertEmails) ? [] : split(alertEmails, ',')
    actionGroupIds: empty(actionGroupIds) ? [] : split(actionGroupIds, ',')
    pythonVersion: pythonVersion
    instanceMemoryMB: int(instanceMemoryMB)
    maximumInstanceCount: int(maximumInstanceCount)
    alwaysReady: map(empty(alwaysReady) ? [] : split(alwaysReady, ','), each => {
      name: split(each, '=')[0]
      instanceCount: int(split(each, '=')[1])
    })
    siteUpdateStrategy: siteUpdateStrategy
    zoneRedundant: bool(zoneRedundant)
    storageSku: storageSku
    subnetId: subnetId
    privateEndpointSubnetId: privateEndpointSubnetId
    privateDnsZoneIds: empty(privateDnsZoneIds) ? [] : split(privateDnsZoneIds, ',')
    publicNetworkAccess: publicNetworkAccess
    workspaceId: workspaceId
    identityId: identityId
    countsRole: countsRole
    appServiceEnvironmentIds: empty(appServiceEnvironmentIds) ? [] : split(appServiceEnvironmentIds, ',')
    diagnosticLogs: bool(diagnosticLogs)
    tags: allTags
  }
}

output AZURE_FUNCTION_APP_NAME string = autoscaler.outputs.functionAppName
output ALERTS_REACH string = autoscaler.outputs.alertsReach

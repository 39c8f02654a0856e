// Entry point of `azd up`: creates a resource group and deploys main.bicep into it.
// azd takes each parameter from an environment variable, which is text: see azd.parameters.json.
targetScope = 'subscription'

@description('Name of the environment. The resource group is rg- and this name.')
param environmentName string

@description('Region that offers Flex Consumption. az functionapp list-flexconsumption-locations lists new ones.')
@allowed([
  'australiaeast'
  'australiasoutheast'
  'brazilsouth'
  'canadacentral'
  'centralindia'
  'centralus'
  'eastasia'
  'eastus'
  'eastus2'
  'francecentral'
  'germanywestcentral'
  'italynorth'
  'japaneast'
  'koreacentral'
  'northcentralus'
  'northeurope'
  'norwayeast'
  'southafricanorth'
  'southcentralus'
  'southeastasia'
  'southindia'
  'spaincentral'
  'swedencentral'
  'uaenorth'
  'uksouth'
  'ukwest'
  'westcentralus'
  'westeurope'
  'westus'
  'westus2'
  'westus3'
])
@metadata({ azd: { type: 'location' } })
param location string

@description('Resource ids of the App Service Plans to scale, separated by commas. The settings refer to the first one.')
param planIds string

@description('Topic whose backlog the app reads.')
param topic string

@description('Subscription of that topic.')
param topicSubscription string

@description('Resource id of the Service Bus namespace with that topic. Empty: a new one is created.')
param serviceBusNamespaceId string = ''

@description('App settings, by name, that differ from local.settings.json.example.')
param settings object = {}

@description('Secret settings. Those that are empty are left out.')
@secure()
param secretSettings object = {}

@description('Create an event hub for metrics that arrive as events.')
@allowed(['true', 'false'])
param eventHub string = 'false'

@description('Let diagnostic settings send to the event hub. They require a shared access policy.')
@allowed(['true', 'false'])
param eventHubSharedAccess string = 'false'

@description('Email addresses that receive alerts, separated by commas.')
param alertEmails string = ''

@description('Resource ids of action groups that receive alerts, separated by commas.')
param actionGroupIds string = ''

@description('Python version. The remote build was seen to install packages for 3.11 whatever the app asks for.')
@allowed(['3.11'])
param pythonVersion string = '3.11'

@description('Memory of an instance of the app in MB: 512, 2048 or 4096. The cost is proportional to it.')
@allowed(['512', '2048', '4096'])
param instanceMemoryMB string = '2048'

@description('Most instances on demand of each function. Azure documents 1 as the lowest value. Some regions refused less than 40.')
param maximumInstanceCount string = '40'

@description('Always-ready instances, such as function:scaler=1,http=1.')
param alwaysReady string = ''

@description('Recreate stops all instances at a deployment. RollingUpdate, a preview, replaces them in turn.')
@allowed(['Recreate', 'RollingUpdate'])
param siteUpdateStrategy string = 'Recreate'

@description('Spread the instances of the app over zones. It needs zone-redundant storage.')
@allowed(['true', 'false'])
param zoneRedundant string = 'false'

@description('SKU of the storage accounts. Zone redundancy is not available in every region.')
param storageSku string = 'Standard_ZRS'

@description('Resource id of the subnet from which the app connects. It is delegated to Microsoft.App/environments.')
param subnetId string = ''

@description('Resource id of the subnet for private endpoints. Empty: there are none.')
param privateEndpointSubnetId string = ''

@description('Resource ids of private DNS zones, separated by commas.')
param privateDnsZoneIds string = ''

@description('Disabled: the app and what it uses are reached through private endpoints only.')
@allowed(['Enabled', 'Disabled'])
param publicNetworkAccess string = 'Enabled'

@description('Resource id of an existing Log Analytics workspace. Empty: a new one is created.')
param workspaceId string = ''

@description('Resource id of an existing user-assigned identity. Empty: a new one is created.')
param identityId string = ''

@description('Role with which the app reads the counts of messages. MonitoringReader cannot change the topic.')
@allowed(['DataOwner', 'MonitoringReader'])
param countsRole string = 'DataOwner'

@description('Resource ids of App Service Environments, separated by commas.')
param appServiceEnvironmentIds string = ''

@description('Write the logs of the Functions host, and of writes to the storage account of the app, to the workspace.')
@allowed(['true', 'false'])
param diagnosticLogs string = 'false'

@description('Prefix of the names of all resources.')
param name string = 'autoscaler'

@description('Object id of a user or group that may read the tables, for python -m shared. Empty: nobody.')
param principalId string = ''

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
    topicSubscription: topicSubscription
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
    principalId: principalId
    tags: allTags
  }
}

output AZURE_FUNCTION_APP_NAME string = autoscaler.outputs.functionAppName
output AZURE_RESOURCE_GROUP string = group.name
output AUTOSCALER_DASHBOARD_URL string = autoscaler.outputs.dashboardUrl
output AUTOSCALER_STORAGE_ACCOUNT string = autoscaler.outputs.appAccountName
output AUTOSCALER_APPLICATION_INSIGHTS string = autoscaler.outputs.insightsName
output AUTOSCALER_SETTINGS string = autoscaler.outputs.commandSettings
output ALERTS_REACH string = autoscaler.outputs.alertsReach

// The app and all resources that it needs, in one resource group: `az deployment group create`.
// `azd up` uses azd.bicep, which deploys this file. No key is created, stored or passed on.

@description('Prefix of the names of all resources.')
@minLength(2)
@maxLength(12)
param name string = 'autoscaler'

param location string = resourceGroup().location

@description('Resource ids of the App Service Plans to scale. The settings refer to the first one.')
@minLength(1)
param planIds string[]

@description('Topic whose backlog the app reads.')
param topic string

@description('Subscription of that topic.')
param topicSubscription string

@description('Resource id of the Service Bus namespace with that topic. Empty: a new one is created.')
param serviceBusNamespaceId string = ''

@description('App settings, by name, that differ from local.settings.json.example.')
param settings object = {}

@description('Secret settings, such as BreakerApprovalKey. They do not appear in the deployment history.')
@secure()
param secretSettings object = {}

@description('Create an event hub for metrics that arrive as events.')
param eventHub bool = false

@description('Let diagnostic settings send to the event hub. They require a shared access policy.')
param eventHubSharedAccess bool = false

@description('Email addresses that receive alerts.')
param alertEmails string[] = []

@description('Resource ids of existing action groups that receive alerts.')
param actionGroupIds string[] = []

@description('Python version. The remote build was seen to install packages for 3.11 whatever the app asks for.')
@allowed(['3.11'])
param pythonVersion string = '3.11'

@description('Memory of an instance of the app in MB: 512, 2048 or 4096. The cost is proportional to it.')
param instanceMemoryMB int = 2048

@description('Most instances on demand of each function. Azure documents 1 as the lowest value. Some regions refused less than 40.')
@minValue(1)
@maxValue(1000)
param maximumInstanceCount int = 40

@description('Instances that are always ready, by group. The name is http, or function: and the name of a function.')
param alwaysReady { name: string, instanceCount: int }[] = []

@description('Recreate stops all instances at a deployment. RollingUpdate, a preview, replaces them in turn.')
@allowed(['Recreate', 'RollingUpdate'])
param siteUpdateStrategy string = 'Recreate'

@description('Spread the instances of the app over zones. It needs zone-redundant storage.')
param zoneRedundant bool = false

@description('SKU of the storage accounts. Zone redundancy is not available in every region.')
param storageSku string = 'Standard_ZRS'

@description('Resource id of the subnet from which the app connects. It is delegated to Microsoft.App/environments.')
param subnetId string = ''

@description('Resource id of the subnet for private endpoints. Empty: there are none.')
param privateEndpointSubnetId string = ''

@description('Resource ids of existing private DNS zones. The others are created and linked to the network.')
param privateDnsZoneIds string[] = []

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

@description('Resource ids of the App Service Environments of the plans. Changing such a plan requires a role there.')
param appServiceEnvironmentIds string[] = []

@description('Write the logs of the Functions host, and of writes to the storage account of the app, to the workspace.')
param diagnosticLogs bool = false

@description('Object id of a user or group that may read the tables, for python -m shared. Empty: nobody.')
param principalId string = ''

param tags object = {}

var suffix = uniqueString(resourceGroup().id, name)
var unique = '${name}-${suffix}'
var plan = split(planIds[0], '/')

// Every setting of the app with its default. Connections are set in modules/function_app.bicep.
var example = loadJsonContent('../local.settings.json.example').Values
var connectionSettings = [
  'FUNCTIONS_WORKER_RUNTIME'
  'AzureWebJobsStorage'
  'ServiceBusConnection'
  'EventHubConnection'
]
var defaults = toObject(
  filter(items(example), each => !contains(connectionSettings, each.key)),
  each => each.key,
  each => each.value
)
var own = union(
  {
    SubscriptionId: plan[2]
    ResourceGroup: plan[4]
    ResourceToScale: plan[8]
    Topic: topic
    Subscription: topicSubscription
    ArmEndpoint: environment().resourceManager
    EventHubConsumerGroup: 'autoscaler'
    ServiceBusNamespaceIds: namespaceId
  },
  countsRole == 'MonitoringReader' ? { ServiceBusCountsFrom: 'resource-manager' } : {},
  settings
)
var chosen = union(defaults, own)
var processes = !empty(chosen.ProcessingPeriodHours)
var recomputes = !empty(chosen.TrendsSubmitter)

var makesNamespace = empty(serviceBusNamespaceId)
var newNamespaceId = resourceId('Microsoft.ServiceBus/namespaces', '${unique}-bus')
var namespaceId = makesNamespace ? newNamespaceId : serviceBusNamespaceId

var newIdentityId = resourceId('Microsoft.ManagedIdentity/userAssignedIdentities', unique)
var usedIdentityId = empty(identityId) ? newIdentityId : identityId

var appAccount = 'app${suffix}'
var telemetryAccount = 'tel${suffix}'
var sku = zoneRedundant && endsWith(storageSku, '_LRS')
  ? fail('zoneRedundant needs zone-redundant storage. Set storageSku to Standard_ZRS.')
  : storageSku

var isPrivate = publicNetworkAccess == 'Disabled'
var access = isPrivate && (empty(subnetId) || empty(privateEndpointSubnetId))
  ? fail('Without public network access, the app needs subnetId and privateEndpointSubnetId.')
  : publicNetworkAccess

resource newIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = if (empty(identityId)) {
  name: unique
  location: location
  tags: tags
}

module identity 'modules/identity.bicep' = {
  name: 'identity'
  scope: resourceGroup(split(usedIdentityId, '/')[2], split(usedIdentityId, '/')[4])
  params: { name: last(split(usedIdentityId, '/')) }
  dependsOn: [newIdentity]
}

module storage 'modules/storage.bicep' = {
  name: 'storage'
  params: {
    appAccount: appAccount
    telemetryAccount: telemetryAccount
    sku: sku
    publicNetworkAccess: access
    location: location
    tags: tags
    principalId: identity.outputs.principalId
    readerId: principalId
    processes: processes
    telemetryQueue: chosen.TelemetryQueue
    keepsTelemetry: processes || recomputes
    readsTelemetry: recomputes
  }
}

module monitoring 'modules/monitoring.bicep' = {
  name: 'monitoring'
  params: {
    name: unique
    location: location
    tags: tags
    principalId: identity.outputs.principalId
    telemetryAccountId: storage.outputs.telemetryAccountId
    workspaceId: workspaceId
    alertEmails: alertEmails
    actionGroupIds: actionGroupIds
  }
}

module arrivals 'modules/arrivals.bicep' = if (processes) {
  name: 'arrivals'
  params: {
    name: unique
    location: location
    tags: tags
    telemetryAccount: storage.outputs.telemetryAccountName
    appAccount: storage.outputs.appAccountName
    telemetryQueue: chosen.TelemetryQueue
    undeliveredContainer: storage.outputs.undeliveredContainer
  }
}

module newServiceBus 'modules/service_bus_namespace.bicep' = if (makesNamespace) {
  name: 'service-bus-namespace'
  params: {
    name: last(split(newNamespaceId, '/'))
    location: location
    tags: tags
    publicNetworkAccess: access
    topic: topic
    subscription: topicSubscription
  }
}

module serviceBus 'modules/service_bus.bicep' = {
  name: 'service-bus'
  scope: resourceGroup(split(namespaceId, '/')[2], split(namespaceId, '/')[4])
  params: {
    namespaceName: last(split(namespaceId, '/'))
    principalId: identity.outputs.principalId
    topic: topic
    countsRole: countsRole
    processes: processes
    processingQueue: chosen.ProcessingQueue
    workingQueue: chosen.WorkingQueue
    app: unique
    tags: tags
    actionGroupIds: monitoring.outputs.actionGroupIds
  }
  dependsOn: [newServiceBus]
}

module hub 'modules/event_hub.bicep' = if (eventHub) {
  name: 'event-hub'
  params: {
    name: '${unique}-hub'
    location: location
    tags: tags
    principalId: identity.outputs.principalId
    hubName: chosen.EventHubName
    consumerGroup: chosen.EventHubConsumerGroup
    readBackConsumerGroup: chosen.EventHubReadBackConsumerGroup
    sharedAccess: eventHubSharedAccess
    publicNetworkAccess: access
  }
}

// One at a time, because plans in the same resource group share a role definition.
@batchSize(1)
module plans 'modules/plan_role.bicep' = [
  for planId in planIds: {
    name: 'plan-${uniqueString(planId)}'
    scope: resourceGroup(split(planId, '/')[2], split(planId, '/')[4])
    params: {
      plan: split(planId, '/')[8]
      app: unique
      principalId: identity.outputs.principalId
    }
  }
]

// One at a time, for the same reason.
@batchSize(1)
module environments 'modules/environment_role.bicep' = [
  for id in appServiceEnvironmentIds: {
    name: 'environment-${uniqueString(id)}'
    scope: resourceGroup(split(id, '/')[2], split(id, '/')[4])
    params: {
      environmentName: last(split(id, '/'))
      app: unique
      principalId: identity.outputs.principalId
    }
  }
]

var storageTargets = [
  for group in ['blob', 'queue', 'table']: {
    id: resourceId('Microsoft.Storage/storageAccounts', appAccount)
    group: group
    zone: 'privatelink.${group}.${environment().suffixes.storage}'
  }
]
var telemetryTargets = [
  {
    id: resourceId('Microsoft.Storage/storageAccounts', telemetryAccount)
    group: 'blob'
    zone: 'privatelink.blob.${environment().suffixes.storage}'
  }
]
// Only a namespace of the tier Premium has private endpoints.
var busTargets = [{ id: newNamespaceId, group: 'namespace', zone: 'privatelink.servicebus.windows.net' }]
var hubTargets = [
  {
    id: resourceId('Microsoft.EventHub/namespaces', '${unique}-hub')
    group: 'namespace'
    zone: 'privatelink.servicebus.windows.net'
  }
]
var zoneIds = toObject(privateDnsZoneIds, id => last(split(id, '/')))

module endpoints 'modules/private_endpoints.bicep' = if (!empty(privateEndpointSubnetId)) {
  name: 'private-endpoints'
  params: {
    location: location
    tags: tags
    subnetId: privateEndpointSubnetId
    zoneIds: zoneIds
    targets: concat(
      storageTargets,
      recomputes ? telemetryTargets : [],
      makesNamespace && isPrivate ? busTargets : [],
      eventHub ? hubTargets : []
    )
  }
  dependsOn: [storage, newServiceBus, hub]
}

module functionApp 'modules/function_app.bicep' = {
  name: 'function-app'
  params: {
    name: unique
    location: location
    tags: tags
    identityId: usedIdentityId
    identityClientId: identity.outputs.clientId
    pythonVersion: pythonVersion
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    alwaysReady: alwaysReady
    siteUpdateStrategy: siteUpdateStrategy
    zoneRedundant: zoneRedundant
    subnetId: subnetId
    publicNetworkAccess: access
    appAccount: storage.outputs.appAccountName
    packageContainer: storage.outputs.packageContainer
    serviceBusHost: serviceBus.outputs.host
    eventHubHost: eventHub ? hub!.outputs.host : ''
    insightsName: monitoring.outputs.insightsName
    settings: chosen
    secretSettings: secretSettings
  }
  dependsOn: [plans, endpoints]
}

module siteEndpoint 'modules/private_endpoints.bicep' = if (isPrivate) {
  name: 'site-private-endpoint'
  params: {
    location: location
    tags: tags
    subnetId: privateEndpointSubnetId
    zoneIds: zoneIds
    targets: [
      {
        id: resourceId('Microsoft.Web/sites', unique)
        group: 'sites'
        zone: 'privatelink.azurewebsites.net'
      }
    ]
  }
  dependsOn: [functionApp]
}

module diagnostics 'modules/diagnostics.bicep' = if (diagnosticLogs) {
  name: 'diagnostics'
  params: {
    appName: functionApp.outputs.name
    appAccount: storage.outputs.appAccountName
    workspaceId: monitoring.outputs.workspaceId
  }
}

output functionAppName string = functionApp.outputs.name
output identityPrincipalId string = identity.outputs.principalId
output telemetryAccountName string = storage.outputs.telemetryAccountName
output appAccountName string = storage.outputs.appAccountName
output insightsName string = monitoring.outputs.insightsName
output dashboardUrl string = 'https://${functionApp.outputs.host}/api/dashboard'

@description('The settings file of python -m shared, without secrets.')
output commandSettings string = string({
  IsEncrypted: false
  Values: union(own, {
    AzureWebJobsStorage__accountName: storage.outputs.appAccountName
    ServiceBusConnection__fullyQualifiedNamespace: serviceBus.outputs.host
  })
})
output alertsReach string = empty(alertEmails) && empty(actionGroupIds)
  ? 'Nobody. Set alertEmails or actionGroupIds, and deploy again.'
  : '${length(alertEmails)} email addresses and ${length(actionGroupIds)} action groups'

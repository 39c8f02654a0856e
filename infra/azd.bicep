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

@secure()
param secretSettings object = {}

@allowed(['true', 'false'])
param eventHub string = 'false'

@allowed(['true', 'false'])
param eventHubSharedAccess string = 'false'

@description('Email addresses that receive alerts, separated by commas.')
param alertEmails string = ''

param pythonVersion string = '3.11'
@allowed(['512', '2048', '4096'])
param instanceMemoryMB string = '2048'
param storageSku string = 'Standard_ZRS'

var tags = { 'azd-env-name': environmentName }

resource group 'Microsoft.Resources/resourceGroups@2025-03-01' = {
  name: 'rg-${environmentName}'
  location: location
  tags: tags
}

module autoscaler 'main.bicep' = {
  name: 'autoscaler'
  scope: group
  params: {
    location: location
    planIds: split(planIds, ',')
    topic: topic
    subscription: subscription
    serviceBusNamespaceId: serviceBusNamespaceId
    settings: settings
    secretSettings: secretSettings
    eventHub: bool(eventHub)
    eventHubSharedAccess: bool(eventHubSharedAccess)
    alertEmails: empty(alertEmails) ? [] : split(alertEmails, ',')
    pythonVersion: pythonVersion
    instanceMemoryMB: int(instanceMemoryMB)
    storageSku: storageSku
    tags: tags
  }
}

output AZURE_FUNCTION_APP_NAME string = autoscaler.outputs.functionAppName

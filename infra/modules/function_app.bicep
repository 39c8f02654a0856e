// The Function App on Flex Consumption. Every connection is by the identity.

param name string
param location string
param tags object
param identityId string
param identityClientId string
param pythonVersion string
param appAccount string
param packageContainer string
param serviceBusHost string
param insightsName string

@description('Empty: no event hub is listened to, unless the settings say so.')
param eventHubHost string

@description('The app\'s settings, without connections.')
param settings object

@secure()
param secretSettings object

resource storage 'Microsoft.Storage/storageAccounts@2023-05-01' existing = { name: appAccount }

resource insights 'Microsoft.Insights/components@2020-02-02' existing = { name: insightsName }

var connections = {
  AZURE_CLIENT_ID: identityClientId
  AzureWebJobsStorage__credential: 'managedidentity'
  AzureWebJobsStorage__clientId: identityClientId
  AzureWebJobsStorage__blobServiceUri: storage.properties.primaryEndpoints.blob
  AzureWebJobsStorage__queueServiceUri: storage.properties.primaryEndpoints.queue
  AzureWebJobsStorage__tableServiceUri: storage.properties.primaryEndpoints.table
  ServiceBusConnection__credential: 'managedidentity'
  ServiceBusConnection__clientId: identityClientId
  ServiceBusConnection__fullyQualifiedNamespace: serviceBusHost
  APPLICATIONINSIGHTS_CONNECTION_STRING: insights.properties.ConnectionString
  APPLICATIONINSIGHTS_AUTHENTICATION_STRING: 'ClientId=${identityClientId};Authorization=AAD'
}

// Of the host: no request of this app is larger, and one of its functions answers without a key.
var limits = {
  FUNCTIONS_REQUEST_BODY_SIZE_LIMIT: '262144'
}

var eventHub = {
  EventHubConnection__credential: 'managedidentity'
  EventHubConnection__clientId: identityClientId
  EventHubConnection__fullyQualifiedNamespace: eventHubHost
}

resource plan 'Microsoft.Web/serverfarms@2023-12-01' = {
  name: '${name}-functions'
  location: location
  tags: tags
  kind: 'functionapp'
  sku: { tier: 'FlexConsumption', name: 'FC1' }
  properties: { reserved: true }
}

resource app 'Microsoft.Web/sites@2023-12-01' = {
  name: name
  location: location
  tags: union(tags, { 'azd-service-name': 'autoscaler' })
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: { '${identityId}': {} }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    siteConfig: {
      http20Enabled: true
      minTlsVersion: '1.2'
      scmMinTlsVersion: '1.2'
      ftpsState: 'Disabled'
    }
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${storage.properties.primaryEndpoints.blob}${packageContainer}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
      scaleAndConcurrency: {
        maximumInstanceCount: 40
        instanceMemoryMB: 2048
      }
      runtime: { name: 'python', version: pythonVersion }
    }
  }

  resource appSettings 'config' = {
    name: 'appsettings'
    properties: union(settings, limits, connections, empty(eventHubHost) ? {} : eventHub, secretSettings)
  }

  resource ftp 'basicPublishingCredentialsPolicies' = {
    name: 'ftp'
    properties: { allow: false }
  }

  resource scm 'basicPublishingCredentialsPolicies' = {
    name: 'scm'
    properties: { allow: false }
  }
}

output name string = app.name

// A new Service Bus namespace with the topic to read, used if no existing namespace is given.

param name string
param location string
param tags object
param topic string
param subscription string

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' = {
  name: name
  location: location
  tags: tags
  sku: { name: 'Standard', tier: 'Standard' }
  properties: {
    publicNetworkAccess: 'Enabled'
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
  }

  resource watched 'topics' = {
    name: topic
    properties: {}

    resource by 'subscriptions' = {
      name: subscription
      properties: { deadLetteringOnMessageExpiration: true }
    }
  }
}
